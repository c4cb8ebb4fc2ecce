/// \file
/// What both grids of mma_backward.cu use: four tiles in shared memory, their products, and what makes p and ds.
#pragma once

#include "ring_attention/cuda/kernels/extent.cuh"
#include "ring_attention/cuda/kernels/mma_tiles.cuh"
#include "ring_attention/cuda/math.cuh"

namespace ring_attention::cuda::mma_backward_tiles {

constexpr int threads = 128;
constexpr int tile = 64;  // of queries and of keys

/// Four tiles, ds^T, and what belongs to 64 queries.
template <int columns>
struct SharedMemory {
  struct OfQueries {
    Extents<tile, 32> extents;
    float lse[tile];  ///< in units of log 2; +inf where p is to be 0
    float delta[tile];
    float position[tile];  ///< from the first key's, exact up to 2^24 tokens
  };
  static constexpr int tile_bytes = 2 * tile * columns;
  static constexpr int bytes = 4 * tile_bytes + 2 * tile * tile + static_cast<int>(sizeof(OfQueries));

  SwizzledTile<columns> k, v, q, grad_out;
  SwizzledTile<tile> ds;
  OfQueries* of;

  __device__ explicit SharedMemory(unsigned char* memory)
      : k{shared_address(memory)},
        v{k.start + tile_bytes},
        q{v.start + tile_bytes},
        grad_out{q.start + tile_bytes},
        ds{grad_out.start + tile_bytes},
        of(reinterpret_cast<OfQueries*>(memory + 4 * tile_bytes + 2 * tile * tile)) {}

  /// What belongs to the queries from first_query on. A barrier follows.
  __device__ void look(const BackwardTask& task, Index row0, int first_query, int thread) const {
    of->extents.look(task, first_query, thread);
    if (thread >= tile) return;
    const bool exists = first_query + thread < task.queries;
    const float lse = exists ? task.lse[row0 + thread] : -infinity;
    of->lse[thread] = lse == -infinity ? infinity : lse * log2_e;
    of->delta[thread] = exists ? task.delta[row0 + thread] : 0;
    const Index position = exists && task.alibi_slope != nullptr ? task.position[first_query + thread] : 0;
    of->position[thread] = static_cast<float>(position - task.run[0].tokens.begin);
  }
};

/// d[j] = a rows x (b rows)^T: 16 rows of `a` from `a_row` on, 64 of `b`.
template <class T, int columns>
__device__ __forceinline__ void rows_with_rows(SwizzledTile<columns> a_tile, int a_row,
                                               SwizzledTile<columns> b_tile, int lane,
                                               float (&d)[tile / 8][4]) {
  const auto of_a = Fragments<columns>::a(a_tile, lane), of_b = Fragments<columns>::b_of_rows(b_tile, lane);
#pragma unroll
  for (int j = 0; j < tile / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) d[j][e] = 0;
#pragma unroll
  for (int c = 0; c < columns / 16; ++c) {
    unsigned a[4];
    load_matrices(a, of_a.at(a_row, 2 * c));
#pragma unroll
    for (int j = 0; j < tile / 16; ++j) {
      unsigned b[4];
      load_matrices(b, of_b.at(16 * j, 2 * c));
      multiply_add<T>(d[2 * j], a, b[0], b[1]);
      multiply_add<T>(d[2 * j + 1], a, b[2], b[3]);
    }
  }
}

/// sum += a b: one 16 x 16 part of a, and 16 rows of `b` from `b_row` on, as many columns as `sum` has.
template <class T, int columns, int blocks>
__device__ __forceinline__ void add_product(const unsigned (&a)[4], SwizzledTile<columns> b_tile, int b_row,
                                            int lane, float (&sum)[blocks][4], int first_block = 0) {
  const auto of_b = Fragments<columns>::b_of_columns(b_tile, lane);
#pragma unroll
  for (int n = 0; n < blocks / 2; ++n) {
    unsigned b[4];
    load_matrices_transposed(b, of_b.at(b_row, first_block + 2 * n));
    multiply_add<T>(sum[2 * n], a, b[0], b[1]);
    multiply_add<T>(sum[2 * n + 1], a, b[2], b[3]);
  }
}

/// The k-th 16 columns of what a product left, as the a of the next.
template <class T>
__device__ __forceinline__ void pack(const float (&d)[tile / 8][4], int k, unsigned (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = packed<T>(d[2 * k + i / 2][i % 2 * 2], d[2 * k + i / 2][i % 2 * 2 + 1]);
}

template <int columns>
__device__ __forceinline__ void clear(float (&d)[columns / 8][4]) {
#pragma unroll
  for (int j = 0; j < columns / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) d[j][e] = 0;
}

/// What makes p and ds of a pair.
struct Pairs {
  float scale, slope;  ///< in units of log 2
  bool plain;          ///< every pair of the tile is visible, and there is no bias
  int run, first_key;
  float position, stride;  ///< of the first key, as OfQueries has it, and to the next

  /// product becomes p, and grad_p, which is dO v^T, becomes ds.
  template <class Of>
  __device__ __forceinline__ void differentiate(const Of& of, int query, int key, float& product,
                                                float& grad_p) const {
    float s = product * scale;
    if (!plain) {
      const Keys visible = of.extents.visible[run][query];
      if (slope != 0)
        s = fmaf(-slope, fabsf(fmaf(static_cast<float>(key), stride, position) - of.position[query]), s);
      if (first_key + key < visible.first || first_key + key >= visible.last) s = -infinity;
    }
    product = exp2_approximate(s - of.lse[query]);
    grad_p = product * (grad_p - of.delta[query]);
  }
};

__device__ inline Pairs pairs_of(const BackwardTask& task, int run, int head, int first_key,
                                 const Extent& extent) {
  const float slope = task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[head];
  const Run& tokens = task.run[run].tokens;
  const Index position =
      tokens.begin + (first_key - task.run[run].first) * tokens.stride - task.run[0].tokens.begin;
  return {task.scale * log2_e,
          slope,
          slope == 0 && extent.sees_all(first_key, tile),
          run,
          first_key,
          static_cast<float>(position),
          static_cast<float>(tokens.stride)};
}

}  // namespace ring_attention::cuda::mma_backward_tiles
