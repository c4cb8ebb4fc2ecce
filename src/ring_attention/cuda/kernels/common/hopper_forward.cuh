/// \file
/// What the Hopper steps of the ladder have in common, the second half: what a warpgroup does with the tiles that
/// hopper_memory.cuh brings.
///
/// A warpgroup takes 64 queries, each warp 16 of them, against tiles of 128 keys:
///
///      S (64 x 128) = Q (shared) K^T (shared)     a row of K is a column of b
///      P            = 2^(S - m), packed           stays in registers
///      O (64 x dim) += P (registers) V (shared)   a row of V is a row of b: "b by rows"
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_memory.cuh"
#include "ring_attention/cuda/kernels/common/hopper_products.cuh"

namespace ring_attention::cuda::hopper {

/// A thread's part of a warpgroup's 64 queries: of rows g and g + 8 of its warp's 16, with g = lane / 4. All functions are
/// inlined, because only then the arrays are registers.
template <class T, int columns>
struct Queries {
  const ForwardTask& task;
  QueryTile q_tile;
  int group_query;  ///< of the warpgroup's first query in the tile
  int thread;       ///< in the warpgroup

  __device__ Queries(const ForwardTask& a_task, const QueryTile& a_tile, int group, int thread_of_group)
      : task(a_task), q_tile(a_tile), group_query(group * group_queries), thread(thread_of_group) {}

  float s[tile_keys / 2];
  float o[columns / 2];
  unsigned p[tile_keys / 16][4];
  RowState row[2];

  [[nodiscard]] __device__ int lane() const { return thread % 32; }
  [[nodiscard]] __device__ int row_in_tile(int i) const {
    return group_query + thread / 32 * 16 + lane() / 4 + 8 * i;
  }
  [[nodiscard]] __device__ bool exists(int i) const {
    return q_tile.first_query + row_in_tile(i) < task.queries;
  }

  /// Empty, or what the step before left.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool carry = !task.fresh && exists(i);
      const Index at = q_tile.query_row(task) + row_in_tile(i);
      row[i] = RowState::begin(carry, task.m + at, task.l + at, lane() % 4);
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        const int column = 8 * j + 2 * (lane() % 4);
        float2 pair{0, 0};
        if (carry && column < task.dim)
          pair = *reinterpret_cast<const float2*>(task.o + at * task.dim + column);
        o[4 * j + 2 * i] = pair.x;
        o[4 * j + 2 * i + 1] = pair.y;
      }
    }
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float l = row[i].sum_of_quad();
      if (!exists(i)) continue;
      const Index at = q_tile.query_row(task) + row_in_tile(i);
      if (lane() % 4 == 0) {
        task.m[at] = row[i].m;
        task.l[at] = l;
      }
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        const int column = 8 * j + 2 * (lane() % 4);
        if (column < task.dim)
          *reinterpret_cast<float2*>(task.o + at * task.dim + column) = {o[4 * j + 2 * i],
                                                                         o[4 * j + 2 * i + 1]};
      }
    }
  }

  /// Starts s = q k^T.
  __device__ __forceinline__ void start_scores(unsigned q, unsigned k) {
    start_rows_by_rows<T, columns>(s, q, q_part_bytes, k, kv_part_bytes);
  }

  /// Starts o += p v.
  __device__ __forceinline__ void start_values(unsigned v) {
    start_adding_product<T>(o, p, v, kv_part_bytes);
  }

  /// Makes weights of s, which stay in s, and raises m. o is to be multiplied by `keep`, row by row.
  template <class QueryExtents>
  __device__ __forceinline__ void softmax_tile(const QueryExtents& extents, int range, int first_key,
                                               float (&keep)[2]) {
    const float scale = task.scale * log2_e;  // scores in units of log 2
    const float slope =
        task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[q_tile.batch_head % task.heads];
    const Extent extent = extents.of_group[range][(group_query + thread / 32 * 16) / 16];
    if (slope == 0 && scale >= 0 && extent.sees_all(first_key, tile_keys)) {
      weigh_rows(scale, keep);
      return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const MaskedRow careful(task, task.range[range], scale, slope, extents.visible[range][row_in_tile(i)],
                              min(q_tile.first_query + row_in_tile(i), task.queries - 1),
                              first_key + 2 * (lane() % 4));
#pragma unroll
      for (int j = 0; j < tile_keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) s[4 * j + 2 * i + e] = careful.score(s[4 * j + 2 * i + e], 8 * j + e);
    }
    weigh_rows(1, keep);
  }

  __device__ __forceinline__ void pack() { hopper::pack<T>(s, p); }

  __device__ __forceinline__ void rescale(const float (&keep)[2]) {
#pragma unroll
    for (int e = 0; e < columns / 2; ++e) o[e] *= keep[e / 2 % 2];
  }

 private:
  __device__ __forceinline__ void weigh_rows(float scale, float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = -infinity;
#pragma unroll
      for (int j = 0; j < tile_keys / 8; ++j) top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
      keep[i] = row[i].raise(top * scale);
      const float origin = rescale_from(row[i].m);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < tile_keys / 8; ++j)
#pragma unroll
        for (int e = 4 * j + 2 * i; e < 4 * j + 2 * i + 2; ++e) {
          s[e] = ex2_approx(fmaf(s[e], scale, -origin));
          sum += s[e];
        }
      row[i].l += sum;
    }
  }
};

}  // namespace ring_attention::cuda::hopper
