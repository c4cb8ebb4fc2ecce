/// \file
/// What `ring-attention train` was asked to do.
#pragma once

#include <memory>
#include <optional>

#include "cli/device_options.hpp"
#include "model/adamw.hpp"
#include "program/trace/options.hpp"
#include "program/watchdog.hpp"

namespace ring_attention {

/// The flags of `train`, with their defaults: a recipe that learns either task.
struct TrainOptions : JobOptions, CpuFlags, SameBitsFlags, TraceOptions {
  std::string task = "lines";  ///< or bandit
  Index seq = 4096;            ///< of the longest sequences
  std::optional<Index> steps;  ///< else those of the curriculum up to `seq`
  double rate = 1e-2;          ///< the largest
  Index seed = 1;
  Index layers = 1, width = 64, heads = 2, dim = 32, hidden = 128;
  Index kv_heads = 0;  ///< 0: as many as heads
  std::string dtype = "float32";
  std::optional<Index> tensor, ulysses, ring, data;  ///< ranks along an axis of the mesh
  bool fsdp = false;
  std::string checkpoint;  ///< directory; empty: none
  Index checkpoint_every = 50;
  Index evaluation_tokens = 32768;  ///< at each length
  bool json = false;

  /// The lengths of the task's curriculum below `seq`, then `seq`; the steps shared out as there.
  [[nodiscard]] model::Curriculum curriculum() const;
  [[nodiscard]] model::Recipe recipe() const;
  [[nodiscard]] model::ModelShape shape() const;
  /// \throws InputError when it has no sequences like those of the stage
  [[nodiscard]] std::unique_ptr<model::Task> training_task(const model::Stage& stage) const;
};

/// A mesh of all ranks.
struct ChosenMesh {
  MeshShape shape;
  std::string rest;  ///< the axis that no flag gave and that took the ranks that were left; empty: none
};

/// The mesh of the flags. The first of ring, data, ulysses, tensor that no flag gives takes the ranks that are left.
/// \throws InputError, one line that names what would do, when ranks, heads or sequences cannot be shared like that
[[nodiscard]] ChosenMesh mesh_of(const TrainOptions& options, int ranks);

/// Adds the flags of `train` to a command.
void declare_train_options(CommandLine& command, TrainOptions& options);

/// \throws InputError, one line
void validate(const TrainOptions& options);

/// Trains, and asks the model about sequences that it has not seen. Collective; returns the exit code.
/// \param options  valid, and the same on all ranks
/// \throws AgreedError for bad input, a disk that is full, a loss that is not finite; the last checkpoint stays
int train_command(const Communicator& comm, const TrainOptions& options, Activity& activity);

}  // namespace ring_attention
