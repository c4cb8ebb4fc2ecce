/// \file
/// The online softmax on the results of tensor cores: a thread holds pairs of neighbouring scores of each of its rows,
/// and the four threads of a quad share the rows.
#pragma once

#include "ring_attention/cuda/kernels/common/visibility.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {

/// m and l of one row. l is this thread's part of the sum; the parts of the quad are added once, at the end.
struct RowState {
  float m, l;

  /// The empty state, or with `carry` the state in memory. One thread of the quad takes all of l.
  __device__ static RowState load(bool carry, const float* m, const float* l, int of_quad) {
    return carry ? RowState{*m, of_quad == 0 ? *l : 0} : RowState{-infinity, 0};
  }

  /// Updates m with the largest score of this thread and rescales l. Returns the factor by which the caller rescales o.
  __device__ __forceinline__ float update_max(float top) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
    const float before = m;
    m = fmaxf(before, top);
    const float factor = ex2_approx(before - rescale_from(m));
    l *= factor;
    return factor;
  }

  /// The whole l, in every thread of the quad.
  [[nodiscard]] __device__ float sum_of_quad() const {
    float sum = l + __shfl_xor_sync(0xffffffffU, l, 1);
    return sum + __shfl_xor_sync(0xffffffffU, sum, 2);
  }
};

/// Computes scores from products in the cases that need more than a scale: a mask, a bias, or a negative scale, with
/// which the largest score does not belong to the largest product. The scores are in units of log 2. For one row of one
/// thread, whose keys are first_key, first_key + 1, first_key + 8, first_key + 9, first_key + 16, ...
class MaskedRow {
 public:
  /// \param scale, slope  in units of log 2
  __device__ MaskedRow(const AttentionTask& task, const KeyRange& range, float scale, float slope,
                       KeyInterval visible, int query, int first_key)
      : scale_(scale), slope_(slope), begin_(visible.begin - first_key), end_(visible.end - first_key) {
    if (slope == 0) return;
    distance_ = static_cast<float>(range.tokens.begin + (first_key - range.first) * range.tokens.stride -
                                   task.position[query]);
    stride_ = static_cast<float>(range.tokens.stride);
  }

  /// The score of key first_key + offset.
  [[nodiscard]] __device__ __forceinline__ float score(float product, int offset) const {
    const float s =
        fmaf(-slope_, fabsf(fmaf(static_cast<float>(offset), stride_, distance_)), product * scale_);
    return offset >= begin_ && offset < end_ ? s : -infinity;
  }

 private:
  float scale_, slope_, distance_ = 0, stride_ = 0;
  int begin_, end_;  // of the visible keys, relative to first_key
};

/// Bit 2j + e says whether key 8j + e >= limit, for e = 0 and 1 and the first 32 keys that MaskedRow names. The compiler
/// moves seven bits at a time into predicates (R2P), so a bit costs less than a comparison.
__device__ inline unsigned bits_from(int limit) {
  const unsigned inside = max(0, min(limit + 6, 134));
  const unsigned before_e0 = (inside + 1) / 8, before_e1 = inside / 8;
  return ~0U << before_e0 << before_e1;
}

}  // namespace ring_attention::cuda
