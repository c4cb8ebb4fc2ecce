/// \file
/// Persistent blocks, used by kernels 6 and 7: a block computes tile after tile of queries.
///
/// Under a causal mask the tiles differ in length. A block gets its next tile when it is ready for it: an atomic counter
/// in device memory has the number of the next tile. The producer passes the number on to the consumers beside Q. The
/// longest tiles of a section of heads come first and the shortest last, so the blocks end at about the same time:
///
///      block 0   |-------- tile 0 --------|---- 4 ----|-- 6 --|
///      block 1   |------- tile 1 -------|----- 3 -----|-- 7 -|
///      block 2   |------ tile 2 ------|------ 5 ------|- 8 -|
///
/// Source: Shah et al., FlashAttention-3, whose code has the same counter for causal masks (DynamicPersistentTileScheduler).
///
/// Only tiles of keys that the mask cuts are tested key by key. The grid has DeviceTraits::multiprocessors blocks,
/// which excludes the ones that the ring reserves for NCCL.
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_pingpong.cuh"

namespace ring_attention::cuda::hopper {

constexpr int no_tile = -1;  ///< the number after the last tile of a block

/// Beside each tile of queries: its number.
template <int columns, int q_stages, int keys>
struct PersistentMemory : SharedMemory<columns, 2, q_stages, keys> {
  using Base = SharedMemory<columns, 2, q_stages, keys>;
  static constexpr int bytes = Base::bytes + q_stages * static_cast<int>(sizeof(int));

  __device__ PersistentMemory() {}

  [[nodiscard]] __device__ int& tile_number(int q_stage) const {
    return reinterpret_cast<int*>(this->memory + Base::bytes)[q_stage];
  }
};

/// Computes the visibility of each tile of queries, one block per tile, and sets the counter of the tiles: each of
/// `blocks` blocks has its first tile without it. It is a kernel of its own because a producer has too few registers for
/// the visibility, and because it is the same for all heads.
template <class Memory>
__global__ void prepare(const __grid_constant__ ForwardTask task, typename Memory::QueryVisibility* tiles,
                        int* next_tile, int blocks) {
  const int tile = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  tiles[tile].compute(task, tile * Memory::tile_queries, thread);
  if (tile == 0 && thread == 0) *next_tile = blocks;
}

/// Starts all copies of a block. One thread calls it.
template <int q_stages, class Memory>
__device__ void produce(const Memory& shared, const ForwardTask& task, const Maps& maps,
                        const TileOrder& order, const typename Memory::QueryVisibility* tiles,
                        int* next_tile) {
  constexpr int tile_queries = Memory::tile_queries, bytes = static_cast<int>(sizeof(*tiles));
  int tile = static_cast<int>(blockIdx.x), number = 0;
  for (int round = 0;; ++round, tile = atomicAdd(next_tile, 1)) {
    const int q_stage = round % q_stages;
    mbarrier_wait(shared.q_empty(q_stage), static_cast<unsigned>(round / q_stages % 2) ^ 1U);
    shared.tile_number(q_stage) = tile < order.count ? tile : no_tile;
    if (tile >= order.count) {
      mbarrier_arrive(shared.q_full(q_stage));
      return;
    }
    const QueryTile q_tile(order, tile, tile_queries);
    const auto* const visibility = tiles + q_tile.first_query / tile_queries;
    shared.load_q(maps.q, q_tile, q_stage, bytes);
    cp_async_bulk(shared_address(&shared.visibility(q_stage)), visibility, bytes, shared.q_full(q_stage));
    load_all_keys(shared, task, maps, q_tile, *visibility, number);
  }
}

template <class T, int columns, int q_stages, int keys>
__global__ void __launch_bounds__(384, 1)
    attend_tiles(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps,
                 const __grid_constant__ TileOrder order,
                 const typename PersistentMemory<columns, q_stages, keys>::QueryVisibility* tiles,
                 int* next_tile) {
  const PersistentMemory<columns, q_stages, keys> shared;
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == 2) {
    setmaxnreg_dec<producer_registers>();
    if (thread % 128 == 0) produce<q_stages>(shared, task, maps, order, tiles, next_tile);
  } else {
    setmaxnreg_inc<consumer_registers>();
    const PingPong ping_pong(group);
    int number = 0;
    for (int round = 0;; ++round) {
      const int q_stage = round % q_stages;
      mbarrier_wait(shared.q_full(q_stage), static_cast<unsigned>(round / q_stages % 2));
      const int tile = shared.tile_number(q_stage);
      if (tile == no_tile) break;
      const QueryTile q_tile(order, tile, shared.tile_queries);
      attend_pingpong<T, columns>(shared, task, q_tile, group, thread % 128, q_stage, ping_pong, number);
    }
    ping_pong.finish();
  }
}

/// Enqueues the kernel for inputs in T.
template <class T, int columns, int q_stages, int keys>
void attend_persistent(const ForwardTask& task, Type type, const DeviceTraits& device, StreamHandle stream) {
  if (task.queries == 0) return;
  using Memory = PersistentMemory<columns, q_stages, keys>;
  const TileOrder order = order_of_queries(task, Memory::tile_queries);
  const int blocks = order.count < device.multiprocessors ? order.count : device.multiprocessors;
  const Scratch<typename Memory::QueryVisibility> tiles(order.tiles, stream);
  const Scratch<int> next_tile(1, stream);
  launch(prepare<Memory>, {order.tiles, Memory::tile_queries}, stream, task, tiles.data(), next_tile.data(),
         blocks);
  launch(attend_tiles<T, columns, q_stages, keys>, {blocks, 384, Memory::bytes}, stream, task,
         maps_of(task, type, keys), order, tiles.data(), next_tile.data());
}

}  // namespace ring_attention::cuda::hopper
