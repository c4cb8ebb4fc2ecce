/// \file
/// The constants and the guard against -inf - (-inf) that all kernels share.
#pragma once

namespace ring_attention::cuda {

constexpr float infinity = __builtin_huge_valf();
constexpr float log2_e = 1.44269504088896340736F;
constexpr float ln_2 = 0.693147180559945309417F;

/// The value that is subtracted from scores before the exponential: m, or 0 if no key was visible yet, because -inf - 0
/// is -inf but -inf - (-inf) is NaN.
__device__ inline float rescale_from(float m) { return m == -infinity ? 0 : m; }

}  // namespace ring_attention::cuda
