/// \file
/// The pairs of a query and a key that each step of a ring computes, in closed form.
#pragma once

#include "ring_attention/ring/placement.hpp"

namespace ring_attention::plan {

/// Visible pairs of a step, of shards of c tokens: they depend on whose keys they are, and for a causal mask on nothing
/// else. Exact for S = N c (zigzag: c even), whatever the rank. forward_flops counts the same pairs one query at a
/// time.
struct StepPairs {
  double own = 0;      ///< the rank's own keys
  double earlier = 0;  ///< keys of a rank with a lower number
  double later = 0;    ///< of a higher one

  /// \param step  the keys are those of (rank - step) mod N: of a lower rank when step <= rank
  [[nodiscard]] double at(int rank, int step) const {
    return step == 0 ? own : (step <= rank ? earlier : later);
  }
  /// The largest of a step after the first.
  [[nodiscard]] double slowest() const { return earlier > later ? earlier : later; }
};

[[nodiscard]] inline StepPairs step_pairs(PlacementKind kind, bool causal, double c) {
  if (!causal) return {c * c, c * c, c * c};
  const double below = c * (c - 1) / 2, diagonal = c * (c + 1) / 2;
  switch (kind) {
    case PlacementKind::contiguous: return {diagonal, c * c, 0};
    case PlacementKind::striped: return {diagonal, diagonal, below};  // i <= j decides at equal stripes
    case PlacementKind::balanced:  // not exact: its search starts from zigzag, which is ideal under this mask
    case PlacementKind::zigzag: return {diagonal, c * c / 2, c * c / 2};
  }
  return {};
}

}  // namespace ring_attention::plan
