// Exercise 11b: the layout of an mma fragment.
//
// One warp computes s = q k^T, 16 queries by 8 keys, 16 columns of q and k at a time: d += A B, where A is 16 columns
// of q, and B the same columns of k, transposed. mma.m16n8k16 spreads the three matrices over the 32 lanes. A register
// of A or B has two numbers, which are neighbours in a row of q or k. With g = lane / 4 and t = lane % 4:
//
//      a[0] = A(g, 2t), A(g, 2t+1)           b[0] = B(2t, g), B(2t+1, g)
//      a[1] = A(g+8, 2t), A(g+8, 2t+1)       b[1] = B(2t+8, g), B(2t+9, g)
//      a[2] = A(g, 2t+8), A(g, 2t+9)         d[0], d[1] = D(g, 2t), D(g, 2t+1)
//      a[3] = A(g+8, 2t+8), A(g+8, 2t+9)     d[2], d[3] = D(g+8, 2t), D(g+8, 2t+1)
#include "exercises.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::lesson_11 {
namespace {

/// The numbers in `column` and `column` + 1 of a row, as one register. `column` is even.
__device__ unsigned pair(const __nv_bfloat16* matrix, int row, int column) {
  const __nv_bfloat16* at = matrix + row * dim + column;
  return cuda::packed<__nv_bfloat16>(__bfloat162float(at[0]), __bfloat162float(at[1]));
}

__global__ void __launch_bounds__(32) multiply(Product a) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  float d[4] = {0, 0, 0, 0};
  for (int first = 0; first < dim; first += 16) {  // the first of 16 columns of q and k
    unsigned of_q[4], of_k[2];                     // a and b above
    for (int i = 0; i < 4; ++i) of_q[i] = pair(a.q, g + 8 * (i % 2), first + 2 * t + 8 * (i / 2));
    for (int i = 0; i < 2; ++i) of_k[i] = pair(a.k, g, first + 2 * t + 8 * i);
    cuda::mma_m16n8k16<__nv_bfloat16>(d, of_q, of_k[0], of_k[1]);
  }
  for (int i = 0; i < 4; ++i) a.s[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = d[i];
}

}  // namespace

void mma_fragment(const Product& problem, cuda::StreamHandle stream) {
  cuda::launch(multiply, {1, 32}, stream, problem);
}

}  // namespace ring_attention::lesson_11
