/// \file
/// The time that a ring's forward should take, from the rates of one rank's arithmetic and of one link.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, section 3.2: a hop is hidden when the
/// computing of its step takes longer.
#pragma once

#include <vector>

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/ring/placement.hpp"

namespace ring_attention {

/// The rates that a machine sustains, each for one rank while all ranks do the same.
struct Rates {
  double flops_per_second = 0;  ///< F
  double bytes_per_second = 0;  ///< beta
};

/// FLOP of each rank at each step, [rank][step]: 4 D a visible pair and query head, two products.
using StepFlops = std::vector<std::vector<double>>;

/// \param q  [batch, heads, S, dim], global
[[nodiscard]] StepFlops forward_flops(const Shape& q, const Mask& mask, const Placement& queries,
                                      const Placement& keys);

/// FLOP of the rank that computes most in all steps together.
[[nodiscard]] double busiest(const StepFlops& flops);

/// Seconds of the whole forward.
struct RingTime {
  double ideal = 0;       ///< the work in equal parts, and no messages
  double overlapped = 0;  ///< each step takes the longer of its hop and its slowest rank's computing
  double in_turn = 0;     ///< each step takes both
};

/// The ranks are in lockstep: a step ends when the slowest rank has ended it. The last step has no hop.
/// \param hop_bytes  the largest parcel
[[nodiscard]] RingTime predict(const StepFlops& flops, double hop_bytes, const Rates& rates);

}  // namespace ring_attention
