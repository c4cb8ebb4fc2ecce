/// \file
/// The grid of keys of backward_3_wgmma.cu and backward_4_ordered.cu: a block owns 128 keys. A warpgroup has 64 of them, with their dK and dV in
/// registers. The block loops over the queries of all heads of the group, in tiles, and skips tiles that see none of
/// the keys. Every tile has the same size in bytes: 64 rows of 128 columns or 128 rows of 64.
///
///      S^T = K Q^T    dP^T = V dO^T        keys by queries: so p^T and ds^T are operands without leaving the registers
///      dV += p^T dO   dK += ds^T Q
///      dQ  = ds K                          sums over all 128 keys: ds^T goes through shared memory
///
/// The exponentials are computed during the product dP, and dQ is added to memory during the product dK. Each warpgroup
/// computes half of dQ, 64 x 64: half of 128 columns, or half of 128 queries.
#pragma once

#include "ring_attention/cuda/kernels/common/backward_bulk.cuh"
#include "ring_attention/cuda/kernels/common/backward_turns.cuh"

namespace ring_attention::cuda::hopper {

/// Copies the keys, and for all heads of the group the tiles of queries that see some of them. One warp calls it.
template <int columns>
__device__ void produce_queries(const KeysMemory<columns>& shared, const BackwardTask& task,
                                const BackwardMaps& maps, const AllQueries<KeysMemory<columns>::rows>& all,
                                const KeyTile& keys, int batch_kv_head) {
  constexpr int rows = KeysMemory<columns>::rows;
  constexpr int floats = rows * static_cast<int>(sizeof(float)),
                intervals = rows * static_cast<int>(sizeof(KeyInterval));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int number = 0;
  // Lane 0 fills a stage after all lanes have seen that it is free. A lane that came to its wait later could find that
  // the phase after it has ended, too, and hang: its parity is the same again. (If lane 0 alone waits, ptxas spills.)
  const auto wait_for_stage = [&] {
    mbarrier_wait(shared.empty(number % stages), static_cast<unsigned>(number / stages % 2) ^ 1U);
    __syncwarp();
    return number++ % stages;
  };
  const auto load_tile = [&](int stage, int batch_head, int tile) {
    auto& metadata = shared.metadata(stage);
    metadata.batch_head = batch_head;
    metadata.first_query = tile * rows;
    const Visibility visible = all.visibility[tile].of_range(keys.range);
    for (int group = 0; group < 2; ++group)
      metadata.unmasked[group] =
          task.alibi_slope == nullptr && visible.includes_all(keys.first_key + 64 * group, 64);
    const bool unmasked = metadata.unmasked[0] && metadata.unmasked[1];
    const unsigned full = shared.full(stage);
    shared.template load_streamed<group_queries>(stage, maps.attention.q, maps.grad_out, tile * rows,
                                                 batch_head,
                                                 2 * floats + (unmasked ? 0 : floats + intervals));
    const Index row = (static_cast<Index>(batch_head) * all.tiles + tile) * rows;
    cp_async_bulk(shared_address(metadata.statistics.lse), all.lse + row, floats, full);
    cp_async_bulk(shared_address(metadata.statistics.delta), all.delta + row, floats, full);
    if (unmasked) return;
    cp_async_bulk(shared_address(metadata.statistics.position), all.position + tile * rows, floats, full);
    cp_async_bulk(shared_address(metadata.visible), all.visibility[tile].visible[keys.range], intervals,
                  full);
  };

  if (lane == 0)
    shared.template load_resident<tile_keys>(maps.attention.k, maps.attention.v, keys.first_key,
                                             batch_kv_head);
  const int group = task.heads / task.kv_heads;
  for (int member = 0; member < group; ++member)
    for (int first = 0; first < all.tiles; first += 32) {
      const bool sees =
          first + lane < all.tiles &&
          all.visibility[first + lane].of_range(keys.range).includes_some(keys.first_key, keys.keys);
      for (unsigned left = __ballot_sync(0xffffffffU, sees); left != 0; left &= left - 1) {
        const int stage = wait_for_stage();
        if (lane == 0)
          load_tile(stage, batch_kv_head * group + member, first + __ffs(static_cast<int>(left)) - 1);
      }
    }
  const int last = wait_for_stage();
  if (lane != 0) return;
  shared.metadata(last).batch_head = -1;
  mbarrier_arrive(shared.full(last));
}

/// What sums dQ: another grid, atomics in any order, the blocks in turns, or copies that add.
enum class DqSum { other_grid, atomics, turns, bulk };

template <int columns, DqSum dq_sum>
using DkdvMemory =
    std::conditional_t<dq_sum == DqSum::turns, TurnsMemory<columns>,
                       std::conditional_t<dq_sum == DqSum::bulk, BulkMemory<columns>, KeysMemory<columns>>>;

/// dK and dV of the 64 keys of one warpgroup, and its half of dQ.
template <class T, int columns, DqSum dq_sum>
__device__ __forceinline__ void dkdv_of_warpgroup(const DkdvMemory<columns, dq_sum>& shared,
                                                  const BackwardTask& task, const KeyTile& keys,
                                                  int batch_kv_head, int group, int thread) {
  using Memory = KeysMemory<columns>;
  constexpr int queries = Memory::rows, part = Memory::part_bytes,
                streamed_part = Memory::streamed_part_bytes;
  const int lane = thread % 32, warp_row = thread / 32 * 16;
  float dk[columns / 2] = {}, dv[columns / 2] = {};
  mbarrier_wait(shared.resident_full(), 0);
  for (int number = 0;; ++number) {
    const int stage = number % stages;
    mbarrier_wait(shared.full(stage), static_cast<unsigned>(number / stages % 2));
    const auto& metadata = shared.metadata(stage);
    const int batch_head = metadata.batch_head, first_query = metadata.first_query;
    if (batch_head < 0) break;
    float p[queries / 2], ds[queries / 2];  // first the products S^T and dP^T
    start_abt<T, columns>(p, shared.resident(0, group), part, shared.streamed(stage, 0), streamed_part);
    start_abt<T, columns>(ds, shared.resident(1, group), part, shared.streamed(stage, 1), streamed_part);
    wgmma_wait<1>();
    wgmma_fence_result(p);
    const Pairs pairs =
        pairs_of(task, keys.range, batch_head % task.heads, keys.first_key, metadata.unmasked[group]);
    const auto query_of = [&](int e) { return e / 4 * 8 + lane % 4 * 2 + e % 2; };
    if (pairs.unmasked) {
#pragma unroll
      for (int e = 0; e < queries / 2; ++e)
        p[e] = pairs.unmasked_weight(metadata.statistics, query_of(e), p[e]);
    } else {
#pragma unroll
      for (int e = 0; e < queries / 2; ++e)
        p[e] = pairs.masked_weight(metadata.statistics, metadata.visible, query_of(e),
                                   64 * group + warp_row + lane / 4 + e / 2 % 2 * 8, p[e]);
    }
    wgmma_wait<0>();
    wgmma_fence_result(ds);
#pragma unroll
    for (int e = 0; e < queries / 2; ++e) ds[e] = p[e] * (ds[e] - metadata.statistics.delta[query_of(e)]);
    unsigned factor_p[queries / 16][4], factor_ds[queries / 16][4];
    pack<T>(p, factor_p);
    pack<T>(ds, factor_ds);
    start_add_ab<T>(dv, factor_p, shared.streamed(stage, 1), streamed_part);

    if constexpr (dq_sum != DqSum::other_grid) {
      // With two buffers one barrier per tile is enough: the barrier of the previous tile came after the reads of this
      // buffer.
      const unsigned all_ds =
          shared.extra() + static_cast<unsigned>(number % 2 * queries / 64 * ds_part_bytes);
#pragma unroll
      for (int k = 0; k < queries / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          store_shared(
              SwizzledTile<part_columns>{all_ds + static_cast<unsigned>(k / 4 * ds_part_bytes)}.address(
                  64 * group + warp_row + lane / 4 + i % 2 * 8, k % 4 * 2 + i / 2) +
                  static_cast<unsigned>(lane % 4 * 4),
              factor_ds[k][i]);
      fence_proxy_async();
      named_barrier<256>(1);
      constexpr bool by_columns = columns == 128;  // the halves of dQ
      float dq[32];
      start_atb<T, tile_rows>(dq, all_ds + static_cast<unsigned>(by_columns ? 0 : group * ds_part_bytes),
                              shared.resident(0) + static_cast<unsigned>(by_columns ? group * part : 0));
      start_add_ab<T>(dk, factor_ds, shared.streamed(stage, 0), streamed_part);
      wgmma_wait<1>();
      wgmma_fence_result(dq);
      const int row_in_tile = warp_row + (by_columns ? 0 : 64 * group),
                first_column = by_columns ? 64 * group : 0;
      if constexpr (dq_sum == DqSum::bulk) {
        mbarrier_wait(shared.read(), static_cast<unsigned>(number % 2) ^ 1U);
        for_pairs(dq, lane, [&](int row, int column, float one, float other) {
          store_shared_v2(shared.dq(row_in_tile + row, first_column + column), task.scale * one,
                          task.scale * other);
        });
        fence_proxy_async();
        mbarrier_arrive_for_warp(shared.stored(), lane);
      } else {
        const int first_row = first_query + row_in_tile;
        if constexpr (dq_sum == DqSum::turns) mbarrier_wait(shared.turn(), static_cast<unsigned>(number % 2));
        float* const to = task.grad_q + static_cast<Index>(batch_head) * task.queries * task.dim;
        for_pairs(dq, lane, [&](int row, int column, float one, float other) {
          row += first_row;
          column += first_column;
          if (row < task.queries && column < task.dim)
            red_add_v2(to + static_cast<Index>(row) * task.dim + column, task.scale * one,
                       task.scale * other);
        });
        if constexpr (dq_sum == DqSum::turns) mbarrier_arrive_for_warp(shared.added(), lane);
      }
    } else {
      start_add_ab<T>(dk, factor_ds, shared.streamed(stage, 0), streamed_part);
    }
    wgmma_wait<0>();
    wgmma_fence_result(dv);
    wgmma_fence_result(dk);
    mbarrier_arrive_for_warp(shared.empty(stage), lane);
  }
  const auto add = [&](float* to, const float(&d)[columns / 2], float factor) {
    to += (static_cast<Index>(batch_kv_head) * task.keys + keys.first_key) * task.dim;
    for_pairs(d, lane, [&](int row, int column, float one, float other) {
      row += 64 * group + warp_row;
      if (row < keys.keys && column < task.dim)  // 32 bits: with 64 registers spill
        // NOLINTNEXTLINE(bugprone-implicit-widening-of-multiplication-result)
        add_to(to + row * task.dim + column, factor * one, factor * other);
    });
  };
  add(task.grad_k, dk, task.scale);
  add(task.grad_v, dv, 1);
}

/// dK and dV of 128 keys, and their contribution to dQ unless another grid sums it.
template <class T, int columns, DqSum dq_sum>
__global__ void __launch_bounds__(backward_threads, 1)
    backward_dkdv_kernel(const __grid_constant__ BackwardTask task, const __grid_constant__ BackwardMaps maps,
                         const __grid_constant__ AllQueries<KeysMemory<columns>::rows> all,
                         const __grid_constant__ TileOrder order) {
  const DkdvMemory<columns, dq_sum> shared;
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  const TileOrder::Place work = order.at(static_cast<int>(blockIdx.x));
  const KeyTile keys(task, dq_sum == DqSum::turns ? key_tile_in_turns(order, work.tile) : work.tile,
                     tile_rows);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == 2) {
    setmaxnreg_dec<producer_registers>();
    const int warp = __shfl_sync(0xffffffffU, thread % 128 / 32, 0);
    if (warp == 0) {
      produce_queries<columns>(shared, task, maps, all, keys, work.head);
    } else if (warp == 1) {
      if constexpr (dq_sum == DqSum::bulk) add_stored_dq<columns>(shared, task);
      if constexpr (dq_sum == DqSum::turns)
        keep_turns<columns>(shared, all, keys.range,
                            (keys.first_key - static_cast<int>(task.range[keys.range].first)) / tile_rows);
    }
  } else {
    setmaxnreg_inc<consumer_registers>();
    dkdv_of_warpgroup<T, columns, dq_sum>(shared, task, keys, work.head, group, thread % 128);
  }
}

/// Enqueues both kernels: the preparation and the grid of keys, of which there are `key_tiles` tiles a head.
template <class T, int columns, DqSum dq_sum>
void launch_dkdv(const BackwardTask& task, const BackwardMaps& maps, int key_tiles, StreamHandle stream) {
  constexpr int rows = KeysMemory<columns>::rows;
  const int heads = task.batch * task.heads, query_tiles = blocks_of(task.queries, rows);
  const Index padded = static_cast<Index>(query_tiles) * rows;
  const Scratch<float> floats((2 * heads + 1) * padded, stream);
  const Scratch<TileVisibility<rows, 32>> visibility(query_tiles, stream);
  const Scratch<int> turns(dq_sum == DqSum::turns ? (heads + max_ranges) * query_tiles : 0, stream);
  float* const delta = floats.data() + heads * padded;
  AllQueries<rows> all{floats.data(), delta, delta + heads * padded, visibility.data(), query_tiles};
  if constexpr (dq_sum == DqSum::turns) {
    all.turns = turns.data();
    all.first_turn = turns.data() + Index{heads} * query_tiles;
  }
  launch(prepare_queries<rows>, {query_tiles * heads, rows}, stream, task, all);
  const TileOrder order = order_of_keys(task, key_tiles);
  launch(backward_dkdv_kernel<T, columns, dq_sum>,
         {order.count, backward_threads, DkdvMemory<columns, dq_sum>::bytes}, stream, task, maps, all, order);
}

/// Enqueues the kernels of a backward for which the grid of keys is the only one. For `bulk`, 64 columns have no kernel.
template <DqSum dq_sum>
void differentiate_by_keys(const BackwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  const int key_tiles = tiles_of_keys(task, tile_rows);
  if (key_tiles == 0 || task.queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    if constexpr (dq_sum != DqSum::bulk || columns == 128)
      launch_dkdv<T, columns, dq_sum>(task, maps_of(task, type), key_tiles, stream);
  });
}

}  // namespace ring_attention::cuda::hopper
