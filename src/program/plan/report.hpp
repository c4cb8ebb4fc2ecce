/// \file
/// `PlanReport`: the answer of `ring-attention plan`, as text or JSON.
#pragma once

#include <string>
#include <vector>

#include "program/plan/options.hpp"

namespace ring_attention {

/// One mesh of the answer.
struct PlannedMesh {
  plan::Candidate candidate;
  std::optional<double> simulated;  ///< seconds of a step with the ring's part by the recurrence
};

struct PlanReport {
  plan::Workload work;
  plan::Machine machine;
  int ranks = 1;
  std::vector<PlannedMesh> meshes;  ///< the best, then its two neighbours
  std::size_t possible = 0;         ///< meshes that were compared
  plan::Longest longest;
  std::optional<int> enough_ranks;  ///< where it does not fit: on how many it would

  [[nodiscard]] const plan::Candidate& best() const { return meshes.front().candidate; }
  /// c*: tokens of a ring's shard from which on the forward's hops hide, e F / (g beta) under a causal mask.
  [[nodiscard]] double smallest_shard() const;
  /// Model FLOP utilisation of the best mesh, a share of the peak.
  [[nodiscard]] double utilisation() const;
};

/// \throws InputError when no mesh is possible
[[nodiscard]] PlanReport make_plan(const PlanOptions& options);

[[nodiscard]] std::string to_text(const PlanReport& report);
[[nodiscard]] std::string to_json(const PlanReport& report);

}  // namespace ring_attention
