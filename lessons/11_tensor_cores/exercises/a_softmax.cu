// Exercise 11a: the running softmax of a tiled kernel.
//
// A warp has one query and walks over tiles of 32 keys. What belongs to which lane:
//
//      lane      0         1       ...     31
//      s        s_0       s_1      ...    s_31       one score of the tile
//      o     o_0, o_32  o_1, o_33  ...  o_31, o_63   two columns of the sum
//      m, l     the same in all lanes
//
// Invariant after each tile, over the keys so far: m = max s, l = sum exp(s - m), o = sum exp(s - m) v.
#include "exercises.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"

namespace ring_attention::lesson_11 {
namespace {

using cuda::infinity, cuda::rescale_from;

constexpr unsigned all = 0xffffffff;  // lanes

/// Of all lanes, in all lanes.
__device__ float warp_max(float x) {
  for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(all, x, other));
  return x;
}
__device__ float warp_sum(float x) {
  for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(all, x, other);
  return x;
}

__global__ void __launch_bounds__(32) attend(Softmax a) {
  const int lane = static_cast<int>(threadIdx.x), i = static_cast<int>(blockIdx.x);
  const float* q = a.q + i * dim;
  float m = -infinity, l = 0, o[2] = {0, 0};
  for (int first = 0; first < a.keys; first += 32) {
    const int key = first + lane;
    float s = -infinity;  // of a key that the query does not see
    if (key < a.keys && i - a.left <= key && key <= i) {
      s = 0;
      for (int c = 0; c < dim; ++c) s += a.scale * q[c] * a.k[key * dim + c];
    }
    float p = 0;  // exp(s - m), the weight of this lane's key
    const float top = fmaxf(m, warp_max(s));
    const float from = rescale_from(top), keep = expf(m - from);
    p = expf(s - from);
    l = keep * l + warp_sum(p);
    o[0] *= keep;
    o[1] *= keep;
    m = top;
    for (int j = 0; j < 32 && first + j < a.keys; ++j) {
      const float p_j = __shfl_sync(all, p, j), *v = a.v + (first + j) * dim;
      o[0] += p_j * v[lane];
      o[1] += p_j * v[lane + 32];
    }
  }
  a.out[i * dim + lane] = o[0] / l;
  a.out[i * dim + lane + 32] = o[1] / l;
  if (lane == 0) a.lse[i] = m + logf(l);
}

}  // namespace

void running_softmax(const Softmax& problem, cuda::StreamHandle stream) {
  cuda::launch(attend, {problem.queries, 32}, stream, problem);
}

}  // namespace ring_attention::lesson_11
