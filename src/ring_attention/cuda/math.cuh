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

/// The end of the forward (finish_rows), for a row with m in units of log 2 and the sum l: out from an element of o, and
/// lse. A row with l = 0 has seen no key.
__device__ inline float out_of(float o, float l) { return l == 0 ? 0 : o / l; }
__device__ inline float lse_of(float m, float l) { return l == 0 ? -infinity : ln_2 * m + logf(l); }

}  // namespace ring_attention::cuda
