/// \file
/// The online softmax on what a tensor core leaves: a thread holds `pairs` pairs of neighbouring scores of each of its
/// rows, and the four threads of a quad share these rows.
#pragma once

#include "ring_attention/cuda/kernels/common/extent.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {

/// m and l of one row. l is this thread's part of the sum: the quad's parts are added once, at the end.
struct RowState {
  float m, l;

  /// Empty, or what the step before left. One thread of the quad holds the l that came.
  __device__ static RowState begin(bool carry, const float* m, const float* l, int of_quad) {
    return carry ? RowState{*m, of_quad == 0 ? *l : 0} : RowState{-infinity, 0};
  }

  /// Takes in the largest score of this thread. Returns what o and l have been multiplied by, o by the caller.
  __device__ __forceinline__ float raise(float top) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
    const float before = m;
    m = fmaxf(before, top);
    const float keep = ex2_approx(before - rescale_from(m));
    l *= keep;
    return keep;
  }

  /// The whole l, in every thread of the quad.
  [[nodiscard]] __device__ float sum_of_quad() const {
    float sum = l + __shfl_xor_sync(0xffffffffU, l, 1);
    return sum + __shfl_xor_sync(0xffffffffU, sum, 2);
  }
};

/// Makes scores of raw products where the plain way does not do: a mask, a bias, or a scale below 0, whose largest
/// score is not at the largest product. Afterwards they are in units of log 2. Of one row of one thread, whose keys are
/// first_key, first_key + 1, first_key + 8, first_key + 9, first_key + 16, ...
class MaskedRow {
 public:
  /// \param scale, slope  in units of log 2
  __device__ MaskedRow(const AttentionTask& task, const KeyRange& range, float scale, float slope,
                       KeyInterval visible, int query, int first_key)
      : scale_(scale), slope_(slope), first_(visible.begin - first_key), last_(visible.end - first_key) {
    if (slope == 0) return;
    distance_ = static_cast<float>(range.tokens.begin + (first_key - range.first) * range.tokens.stride -
                                   task.position[query]);
    stride_ = static_cast<float>(range.tokens.stride);
  }

  /// The score of the key that stands `on` keys after first_key.
  [[nodiscard]] __device__ __forceinline__ float score(float product, int on) const {
    const float s = fmaf(-slope_, fabsf(fmaf(static_cast<float>(on), stride_, distance_)), product * scale_);
    return on >= first_ && on < last_ ? s : -infinity;
  }

 private:
  float scale_, slope_, distance_ = 0, stride_ = 0;
  int first_, last_;
};

}  // namespace ring_attention::cuda
