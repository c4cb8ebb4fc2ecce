/// \file
/// One step of a ring: its arithmetic, its merge, its hop, and the links of a mesh.
#pragma once

#include "plan/machine.hpp"
#include "plan/mesh.hpp"
#include "plan/volume.hpp"

namespace ring_attention::plan {

inline constexpr double backward_flops =
    2.5;  ///< of attention, over those of its forward: five products for two
inline constexpr double backward_rate = 0.9;  ///< FlashAttention-3, H100: 561 of 616 TFLOP/s

/// One step of a ring, of one layer.
struct RingStep {
  double compute = 0;       ///< of the average step, merge included
  double merge = 0;         ///< of that
  double hop = 0;           ///< of K,V; backward: and of dK,dV
  double gradient_hop = 0;  ///< backward: the last one, alone
};
/// What computing does not hide of a step's hop: max(0, hop - compute), or all of it where messages cost a core its
/// time.
[[nodiscard]] double exposed_hop(const RingStep& step, const Machine& machine);
/// Seconds of the two all-to-alls of Ulysses, before and after attention, in which a rank sends `bytes` together.
[[nodiscard]] double all_to_all_seconds(const Mesh& mesh, const Machine& machine, double bytes);

/// Seconds that a ring's step needs beside its arithmetic: a launch, and the state in float read and written.
[[nodiscard]] double merge_seconds(const Attention& layer, const Machine& machine);

/// The link of a hop to the next rank of the ring of a mesh: the slowest of the ring, or, for `inside`, the fastest.
[[nodiscard]] LinkClass ring_link(const Mesh& mesh, const Machine& machine, bool inside = false);

}  // namespace ring_attention::plan
