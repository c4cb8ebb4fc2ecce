/// \file
/// What both grids of backward_2_mma.cu share: four tiles in shared memory, and their products.
#pragma once

#include "ring_attention/cuda/kernels/common/backward_pairs.cuh"
#include "ring_attention/cuda/kernels/common/mma_tiles.cuh"

namespace ring_attention::cuda::mma_backward_tiles {

constexpr int threads = 128;
constexpr int tile = 64;  // of queries and of keys

/// Four tiles, ds^T, and the visibility and statistics of 64 queries.
template <int columns>
struct SharedMemory {
  struct OfQueries {
    TileVisibility<tile, 32> visibility;
    Statistics<tile> statistics;
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

  /// Starts to copy the rows of an array from row0 on to one of the tiles.
  template <class T>
  __device__ void copy_async(SwizzledTile<columns> to, const void* array, Index row0, int rows, int dim,
                             int thread) const {
    to.template copy_async<tile, threads>(static_cast<const T*>(array) + row0 * dim, rows, dim, thread);
  }

  /// Computes `of` for the queries from first_query on; row0 is the row of the first. A barrier follows.
  __device__ void load_rows(const BackwardTask& task, Index row0, int first_query, int thread) const {
    of->visibility.compute(task, first_query, thread);
    if (thread >= tile) return;
    const bool exists = first_query + thread < task.queries;
    of->statistics.lse[thread] = exists ? lse_of(task, row0 + thread) : infinity;
    of->statistics.delta[thread] = exists ? task.delta[row0 + thread] : 0;
    const Index position = exists && task.alibi_slope != nullptr ? task.position[first_query + thread] : 0;
    of->statistics.position[thread] = from_first_key(task, position);
  }
};

/// Replaces the products q k^T and dO v^T (grad_p) by p and ds. Rows are keys and columns are queries; with
/// `by_queries` rows are queries and columns are keys. warp_row is the warp's first row.
template <bool by_queries, class Of>
__device__ __forceinline__ void compute_p_and_ds(const Pairs& pairs, int range, const Of& of, int warp_row,
                                                 int lane, float (&product)[tile / 8][4],
                                                 float (&grad_p)[tile / 8][4]) {
#pragma unroll
  for (int j = 0; j < tile / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = warp_row + lane / 4 + e / 2 * 8, column = 8 * j + lane % 4 * 2 + e % 2;
      const int query = by_queries ? row : column, key = by_queries ? column : row;
      product[j][e] = pairs.unmasked ? pairs.unmasked_weight(of.statistics, query, product[j][e])
                                     : pairs.masked_weight(of.statistics, of.visibility.visible[range], query,
                                                           key, product[j][e]);
      grad_p[j][e] = product[j][e] * (grad_p[j][e] - of.statistics.delta[query]);
    }
}

/// d = a b^T: 16 rows of `a_tile` from `a_row` on, 64 rows of `b_tile`.
template <class T, int columns>
__device__ __forceinline__ void product_abt(SwizzledTile<columns> a_tile, int a_row,
                                            SwizzledTile<columns> b_tile, int lane, float (&d)[tile / 8][4]) {
  const auto of_a = Fragments<columns>::a(a_tile, lane), of_b = Fragments<columns>::b_of_rows(b_tile, lane);
#pragma unroll
  for (int j = 0; j < tile / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) d[j][e] = 0;
#pragma unroll
  for (int c = 0; c < columns / 16; ++c) {
    unsigned a[4];
    ldmatrix_x4(a, of_a.at(a_row, 2 * c));
#pragma unroll
    for (int j = 0; j < tile / 16; ++j) {
      unsigned b[4];
      ldmatrix_x4(b, of_b.at(16 * j, 2 * c));
      mma_m16n8k16<T>(d[2 * j], a, b[0], b[1]);
      mma_m16n8k16<T>(d[2 * j + 1], a, b[2], b[3]);
    }
  }
}

/// sum += a b: a is 16 x 16, b is 16 rows of `b_tile` from `b_row` on. first_block is the first group of eight columns.
template <class T, int columns, int blocks>
__device__ __forceinline__ void add_product(const unsigned (&a)[4], SwizzledTile<columns> b_tile, int b_row,
                                            int lane, float (&sum)[blocks][4], int first_block = 0) {
  const auto of_b = Fragments<columns>::b_of_columns(b_tile, lane);
#pragma unroll
  for (int n = 0; n < blocks / 2; ++n) {
    unsigned b[4];
    ldmatrix_x4_trans(b, of_b.at(b_row, first_block + 2 * n));
    mma_m16n8k16<T>(sum[2 * n], a, b[0], b[1]);
    mma_m16n8k16<T>(sum[2 * n + 1], a, b[2], b[3]);
  }
}

/// Rounds columns 16 k .. 16 k + 15 of a product to T, as operand a of the next product.
template <class T>
__device__ __forceinline__ void pack(const float (&d)[tile / 8][4], int k, unsigned (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = packed<T>(d[2 * k + i / 2][i % 2 * 2], d[2 * k + i / 2][i % 2 * 2 + 1]);
}

}  // namespace ring_attention::cuda::mma_backward_tiles
