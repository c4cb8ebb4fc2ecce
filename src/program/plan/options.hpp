/// \file
/// What `ring-attention plan` was asked.
#pragma once

#include <optional>

#include "cli/command_line.hpp"
#include "plan/search.hpp"

namespace ring_attention {

/// The flags of `plan`. A number that is given replaces that of the named model or machine.
struct PlanOptions {
  std::string model = "llama-3-8b", machine = "8xh100", phase = "training", config;
  std::optional<Index> layers, hidden, heads, kv_heads, ffn, vocab;
  Index context = 131072, batch = 1, ranks = 8;
  std::optional<double> flops, memory, link, nic;  ///< TFLOP/s, GB, GB/s, GB/s
  std::optional<Index> node, nics;
  std::optional<Index> tensor, ulysses, ring, data;
  Index pipeline = 1, micro_batch = 1, chunks = 1;
  bool keep_activations = false;
  bool json = false;

  /// \throws InputError for unknown names and numbers that do not fit together
  [[nodiscard]] plan::Workload workload() const;
  [[nodiscard]] plan::Machine hardware() const;
  [[nodiscard]] plan::MeshWish wish() const;
};

/// Adds the flags of `plan` to a command.
void declare_plan_options(CommandLine& command, PlanOptions& options);

}  // namespace ring_attention
