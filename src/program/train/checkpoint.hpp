/// \file
/// `Checkpoints`: the state of a training on a disk, complete or not there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/train/directory_lock.hpp"
#include "program/train/options.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// The score of a step's sequences, before the step.
struct CurvePoint {
  Index step, length;
  double loss, accuracy;
};
using Curve = std::vector<CurvePoint>;

/// A checkpoint of N steps is the directory `step_N`: parameters.npy, first_moment.npy and second_moment.npy, each one flat
/// array of the whole model, and checkpoint.json, which has the places of the matrices in it, and the curve so far.
///
/// The layout is that of one process: each rank writes a part of the numbers that it has, and reads those that it keeps. So
/// a training resumes on any mesh, and with the same bits on its own mesh with the same instruction set (--isa), with
/// FSDP or without.
///
/// A checkpoint is written under the name `step.part`, synchronised, and renamed; then the one before it is removed.
/// Every function is collective.
class Checkpoints {
 public:
  /// Makes the directory if it is missing, holds it, and removes what a killed job has left.
  /// \param options  those that load() wants to be the same, and --checkpoint
  /// \throws AgreedError when nothing can be written there, or another training holds the directory
  Checkpoints(const Communicator& comm, const TrainOptions& options);
  Checkpoints(const Checkpoints&) = delete;
  ~Checkpoints();

  /// The directory of the last checkpoint; empty: there is none.
  [[nodiscard]] const std::string& last() const { return last_; }

  /// For the end of an error: `; the last checkpoint, DIR/step_20, stays`.
  [[nodiscard]] std::string what_stays() const;

  /// Gives model and optimiser the state of the last checkpoint. \returns its curve
  /// \throws AgreedError when it is damaged, or of a training with other options; only the mesh may be another
  template <class T>
  Curve load(model::Transformer<T>& model, model::AdamW<T>& adam) const;

  /// Writes the state after adam.steps() steps.
  /// \throws AgreedError when it cannot be written; then the last checkpoint stays
  template <class T>
  void save(model::Transformer<T>& model, model::AdamW<T>& adam, const Curve& curve);

 private:
  void publish(const std::string& description, const std::string& name);

  const Communicator& comm_;
  std::string directory_, next_, last_;
  std::string training_;               // as text
  std::optional<DirectoryLock> lock_;  // of rank 0
};

}  // namespace ring_attention
