/// \file
/// The second grid of backward_3_wgmma.cu: dQ, summed in a fixed order. A block owns 128 queries, a warpgroup 64 of
/// them. It loops over the keys that they see, as the forward does:
///
///      S = Q K^T    dP = dO V^T    dQ += ds K        ds stays in registers
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_backward.cuh"

namespace ring_attention::cuda::hopper {

template <int columns>
using QueriesMemory = BackwardMemory<columns, tile_keys, TileVisibility<tile_rows, 16>, 1, 0>;

/// dQ of the 64 queries of one warpgroup.
template <class T, int columns>
__device__ __forceinline__ void dq_of_warpgroup(const QueriesMemory<columns>& shared,
                                                const BackwardTask& task, const QueryTile& q_tile, int group,
                                                int thread) {
  constexpr int part = QueriesMemory<columns>::part_bytes;
  const auto& visibility = shared.metadata(0);
  const int lane = thread % 32, first_row = 64 * group + thread / 32 * 16;  // of the warp, in the block
  const float scale = task.scale * log2_e;
  const float slope =
      task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[q_tile.batch_head % task.heads];
  float lse[2], delta[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + lane / 4 + 8 * i;
    const bool exists = q_tile.first_query + row < task.queries;
    lse[i] = exists ? lse_of(task, q_tile.query_row(task) + row) : infinity;
    delta[i] = exists ? task.delta[q_tile.query_row(task) + row] : 0;
  }
  float dq[columns / 2] = {};
  mbarrier_wait(shared.resident_full(), 0);
  KeyTiles tile(visibility, task.ranges, tile_keys);
  for (int number = 0; tile.more(); ++number, tile.next()) {
    const int stage = number % stages;
    mbarrier_wait(shared.full(stage), static_cast<unsigned>(number / stages % 2));
    float p[tile_keys / 2], ds[tile_keys / 2];  // first the products S and dP
    start_abt<T, columns>(p, shared.resident(0, group), part, shared.streamed(stage, 0), part);
    start_abt<T, columns>(ds, shared.resident(1, group), part, shared.streamed(stage, 1), part);
    wgmma_wait<1>();
    wgmma_fence_result(p);
    const bool unmasked =
        slope == 0 && visibility.of_group[tile.range()][first_row / 16].includes_all(tile.first(), tile_keys);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto each = [&](auto score) {
#pragma unroll
        for (int j = 0; j < tile_keys / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = p[4 * j + 2 * i + e];
            x = ex2_approx(score(x, 8 * j + e) - lse[i]);
          }
      };
      if (unmasked) {
        each([&](float product, int) { return product * scale; });
      } else {
        const int row = first_row + lane / 4 + 8 * i;
        const MaskedRow masked(
            task, task.range[tile.range()], scale, slope, visibility.visible[tile.range()][row],
            min(q_tile.first_query + row, task.queries - 1), tile.first() + 2 * (lane % 4));
        each([&](float product, int on) { return masked.score(product, on); });
      }
    }
    wgmma_wait<0>();
    wgmma_fence_result(ds);
#pragma unroll
    for (int e = 0; e < tile_keys / 2; ++e) ds[e] = p[e] * (ds[e] - delta[e / 2 % 2]);
    unsigned factor_ds[tile_keys / 16][4];
    pack<T>(ds, factor_ds);
    start_add_ab<T>(dq, factor_ds, shared.streamed(stage, 0), part);
    wgmma_wait<0>();
    wgmma_fence_result(dq);
    if (lane == 0) mbarrier_arrive(shared.empty(stage));
  }
  for_pairs(dq, lane, [&](int row, int column, float one, float other) {
    row += first_row;
    if (q_tile.first_query + row < task.queries && column < task.dim)
      add_to(task.grad_q + (q_tile.query_row(task) + row) * task.dim + column, task.scale * one,
             task.scale * other);
  });
}

/// dQ of 128 queries.
template <class T, int columns>
__global__ void __launch_bounds__(backward_threads, 1)
    backward_dq_kernel(const __grid_constant__ BackwardTask task, const __grid_constant__ BackwardMaps maps,
                       const __grid_constant__ TileOrder order) {
  const QueriesMemory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  const QueryTile q_tile(order, static_cast<int>(blockIdx.x), tile_rows);
  shared.metadata(0).compute(task, q_tile.first_query, thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == 2) {
    setmaxnreg_dec<producer_registers>();
    if (thread % 128 != 0) return;
    shared.template load_resident<group_queries>(maps.attention.q, maps.grad_out, q_tile.first_query,
                                                 q_tile.batch_head);
    int number = 0;
    for (KeyTiles tile(shared.metadata(0), task.ranges, tile_keys); tile.more(); tile.next(), ++number) {
      const int stage = number % stages;
      mbarrier_wait(shared.empty(stage), static_cast<unsigned>(number / stages % 2) ^ 1U);
      shared.template load_streamed<tile_keys>(stage, maps.attention.k, maps.attention.v, tile.first(),
                                               q_tile.batch_kv_head(task));
    }
  } else {
    setmaxnreg_inc<consumer_registers>();
    dq_of_warpgroup<T, columns>(shared, task, q_tile, group, thread % 128);
  }
}

}  // namespace ring_attention::cuda::hopper
