/// \file
/// What the Hopper kernels share, second half: what a warpgroup computes with the tiles in shared memory.
///
/// A warpgroup has 64 queries, each warp 16 of them. It processes tiles of 128 keys, in forward 7 of 176:
///
///      S (64 x keys) = Q (shared) K^T (shared)    a row of K is a column of b
///      P            = 2^(S - m), 16 bits          stays in registers
///      O (64 x dim) += P (registers) V (shared)   a row of V is a row of b: b_by_rows
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_memory.cuh"
#include "ring_attention/cuda/kernels/common/hopper_products.cuh"

namespace ring_attention::cuda::hopper {

/// A thread's part of a warpgroup's 64 queries: parts of rows g and g + 8 of its warp's 16, with g = lane / 4. All
/// functions are inlined so that the arrays are in registers. `mask_by_bits`: in a tile with a mask, a score takes a bit
/// instead of two comparisons, and the softmax is one piece of code for all tiles.
template <class T, int columns, int keys = tile_keys, bool mask_by_bits = false>
struct WarpgroupTile {
  const ForwardTask& task;
  QueryTile q_tile;
  int group_query;  ///< the index of the warpgroup's first query in the tile
  int thread;       ///< the index in the warpgroup

  __device__ WarpgroupTile(const ForwardTask& a_task, const QueryTile& a_tile, int group, int thread_of_group)
      : task(a_task), q_tile(a_tile), group_query(group * group_queries), thread(thread_of_group) {}

  float s[keys / 2];
  float o[columns / 2];
  unsigned p[keys / 16][4];
  RowState row[2];

  [[nodiscard]] __device__ int lane() const { return thread % 32; }
  [[nodiscard]] __device__ int row_in_tile(int i) const {
    return group_query + thread / 32 * 16 + lane() / 4 + 8 * i;
  }
  [[nodiscard]] __device__ bool exists(int i) const {
    return q_tile.first_query + row_in_tile(i) < task.queries;
  }

  /// Loads the state from memory, or starts with the empty state.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool carry = !task.fresh && exists(i);
      const Index at = q_tile.query_row(task) + row_in_tile(i);
      row[i] = RowState::load(carry, task.m + at, task.l + at, lane() % 4);
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

  /// Stores the state, or out and lse.
  __device__ __forceinline__ void store() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float l = row[i].sum_of_quad();
      if (!exists(i)) continue;
      const Index at = q_tile.query_row(task) + row_in_tile(i);
      if (lane() % 4 == 0) {
        task.m[at] = task.last ? lse_of(row[i].m, l) : row[i].m;
        task.l[at] = l;
      }
      if (task.last) {
#pragma unroll
        for (int j = 0; j < columns / 8; ++j)
#pragma unroll
          for (int e = 4 * j + 2 * i; e < 4 * j + 2 * i + 2; ++e) o[e] = out_of(o[e], l);
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
    start_abt<T, columns>(s, q, q_part_bytes, k, kv_part_bytes<keys>);
  }

  /// Starts o += p v.
  __device__ __forceinline__ void start_values(unsigned v) { start_add_ab<T>(o, p, v, kv_part_bytes<keys>); }

  /// Replaces s by p, not yet rounded, and updates m and l. The caller must multiply the rows of o by `factor`.
  __device__ __forceinline__ void softmax_tile(const auto& visibility, int range, int first_key,
                                               float (&factor)[2]) {
    const float scale = task.scale * log2_e;  // scores in units of log 2
    const float slope =
        task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[q_tile.batch_head % task.heads];
    const Visibility visible = visibility.of_group[range][(group_query + thread / 32 * 16) / 16];
    float left = 1;  // the factor that softmax_rows multiplies the scores by
    if (slope == 0 && scale >= 0 && visible.includes_all(first_key, keys)) {
      if (!mask_by_bits) {
        softmax_rows(scale, factor);
        return;
      }
      left = scale;
    } else if (mask_by_bits && slope == 0) {
      if constexpr (mask_by_bits)
        hide(scale, visibility.visible[range] + row_in_tile(0), first_key, visible.all.begin > first_key);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const MaskedRow masked(
            task, task.range[range], scale, slope, visibility.visible[range][row_in_tile(i)],
            min(q_tile.first_query + row_in_tile(i), task.queries - 1), first_key + 2 * (lane() % 4));
#pragma unroll
        for (int j = 0; j < keys / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) s[4 * j + 2 * i + e] = masked.score(s[4 * j + 2 * i + e], 8 * j + e);
      }
    }
    softmax_rows(left, factor);
  }

  __device__ __forceinline__ void pack() { hopper::pack<T>(s, p); }

  /// After the first tiles m seldom grows. Where it grows in no row of the warp, all factors are 1.
  __device__ __forceinline__ void rescale(const float (&factor)[2]) {
    if (!__any_sync(0xffffffffU, factor[0] != 1 || factor[1] != 1)) return;
#pragma unroll
    for (int e = 0; e < columns / 2; ++e) o[e] *= factor[e / 2 % 2];
  }

 private:
  /// Multiplies the products by the scale, and replaces those with keys that a row does not see by minus infinity.
  /// `begin`: some row does not see the tile's first key.
  __device__ __forceinline__ void hide(float scale, const KeyInterval* visible, int first_key, bool begin) {
    static_assert(keys <= 128, "a row has one bit for each of a thread's keys");
    const int key = first_key + 2 * (lane() % 4);
    unsigned hidden[2] = {bits_from(visible[0].end - key), bits_from(visible[8].end - key)};
    if (begin) {
      hidden[0] |= ~bits_from(visible[0].begin - key);
      hidden[1] |= ~bits_from(visible[8].begin - key);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int b = 0; b < keys / 4; ++b) {
        float& score = s[b / 2 * 4 + 2 * i + b % 2];
        score = (hidden[i] & (1U << b)) != 0 ? -infinity : score * scale;
      }
  }

  __device__ __forceinline__ void softmax_rows(float scale, float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = -infinity;
#pragma unroll
      for (int j = 0; j < keys / 8; ++j) top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
      factor[i] = row[i].update_max(top * scale);
      const float origin = rescale_from(row[i].m);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < keys / 8; ++j)
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
