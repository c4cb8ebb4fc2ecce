/// \file
/// The few numbers and the one guard that every kernel shares.
#pragma once

namespace ring_attention::cuda {

constexpr float infinity = __builtin_huge_valf();
constexpr float log2_e = 1.44269504088896340736F;
constexpr float ln_2 = 0.693147180559945309417F;

/// What scores are measured from before they are exponentiated: m, and 0 while no key was seen, because
/// -inf - 0 is -inf and -inf - (-inf) is no number.
__device__ inline float rescale_from(float m) { return m == -infinity ? 0 : m; }

}  // namespace ring_attention::cuda
