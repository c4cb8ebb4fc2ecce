/// \file
/// Products of a warpgroup with tiles in shared memory. TMA stores a tile in parts of 64 columns, in rows of 128 bytes;
/// `a_part` and `b_part` are the distances of the parts in bytes. Each function starts and commits one group of wgmma.
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_memory.cuh"

namespace ring_attention::cuda::hopper {

/// The descriptor of the same matrix `bytes` further on. It is advanced by an addition, because to make a descriptor takes
/// longer than some products. Addresses are below 2^18, so nothing is carried out of their bits.
__device__ __forceinline__ unsigned long long advanced(unsigned long long descriptor, int bytes) {
  return (descriptor & ~0xffffffffULL) |
         (static_cast<unsigned>(descriptor) + static_cast<unsigned>(bytes) / 16);
}

/// d (64 x n) = a b^T: 64 rows of one tile times n rows of another. Both have `columns` columns.
template <class T, int columns, int count>
__device__ __forceinline__ void start_abt(float (&d)[count], unsigned a, int a_part, unsigned b, int b_part) {
  const unsigned long long first_a = matrix_descriptor(a, 16), first_b = matrix_descriptor(b, 16);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < columns / 16; ++k)
    wgmma_m64nNk16<T, 0, 0>(d, advanced(first_a, k / 4 * a_part + k % 4 * 32),
                            advanced(first_b, k / 4 * b_part + k % 4 * 32), k > 0);
  wgmma_commit();
}

/// d (64 x n) += a b: a is in registers, in pieces of 16 columns. b has a row for each column of a, and n columns.
template <class T, int count, int pieces>
__device__ __forceinline__ void start_add_ab(float (&d)[count], const unsigned (&a)[pieces][4], unsigned b,
                                             int b_part) {
  const unsigned long long first_b = matrix_descriptor(b, static_cast<unsigned>(b_part));
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < pieces; ++k) wgmma_m64nNk16<T, 1>(d, a[k], advanced(first_b, k * 16 * row_bytes), true);
  wgmma_commit();
}

/// d (64 x 64) = a^T b: one part of a and one part of b. Both have `rows` rows.
template <class T, int rows>
__device__ __forceinline__ void start_atb(float (&d)[32], unsigned a, unsigned b) {
  const unsigned long long first_a = matrix_descriptor(a, 16), first_b = matrix_descriptor(b, 16);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < rows / 16; ++k)
    wgmma_m64nNk16<T, 1, 1>(d, advanced(first_a, k * 16 * row_bytes), advanced(first_b, k * 16 * row_bytes),
                            k > 0);
  wgmma_commit();
}

/// Rounds the result of a product to T, as operand a of the next product.
template <class T, int count>
__device__ __forceinline__ void pack(const float (&d)[count], unsigned (&a)[count / 8][4]) {
#pragma unroll
  for (int k = 0; k < count / 8; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = packed<T>(d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
  wgmma_fence_operand(a);
}

/// Calls use(row, column, d, the next d) for this thread's pairs of a product. row is one of the 16 rows of its warp.
template <int count, class Use>
__device__ __forceinline__ void for_pairs(const float (&d)[count], int lane, Use use) {
#pragma unroll
  for (int j = 0; j < count / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i)
      use(lane / 4 + 8 * i, 8 * j + 2 * (lane % 4), d[4 * j + 2 * i], d[4 * j + 2 * i + 1]);
}

}  // namespace ring_attention::cuda::hopper
