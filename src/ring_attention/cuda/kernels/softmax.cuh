/// \file
/// The online softmax on what a tensor core leaves: a thread holds `pairs` pairs of neighbouring scores of each of its
/// rows, and the four threads of a quad share these rows.
#pragma once

#include "ring_attention/cuda/kernels/extent.cuh"
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
  __device__ float raise(float top) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
    const float before = m;
    m = fmaxf(before, top);
    const float keep = exp2_approximate(before - rescale_from(m));
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
/// score is not at the largest product. Afterwards they are in units of log 2.
struct CarefulScores {
  const AttentionTask& task;
  int run;
  float scale, slope;  ///< in units of log 2

  /// s of key `key` and the next, as the query sees them.
  __device__ void make(float& s0, float& s1, int key, Keys visible, int query) const {
    s0 = one(s0, key, visible, query);
    s1 = one(s1, key + 1, visible, query);
  }

 private:
  [[nodiscard]] __device__ float one(float product, int key, Keys visible, int query) const {
    if (key < visible.first || key >= visible.last) return -infinity;
    float s = product * scale;
    if (slope != 0) s += alibi(slope, task.run[run], key, task.position[query]);
    return s;
  }
};

}  // namespace ring_attention::cuda
