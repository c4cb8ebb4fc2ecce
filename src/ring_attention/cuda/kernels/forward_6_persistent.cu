/// \file
/// Kernel 6: persistent blocks, one per multiprocessor, each of which computes many tiles. What changed since kernel 5: a
/// block starts its next tile of queries before it has finished the last one. Its producer copies the next Q and its
/// visibility and continues with K and V, while the consumers store o. Q and its visibility have two buffers.
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
/// which excludes the ones that the ring reserves for NCCL. Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_pingpong.cuh"

#include <algorithm>

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

constexpr int q_stages = 2;
constexpr int no_tile = -1;  ///< the number after the last tile of a block

/// Beside each tile of queries: its number.
template <int columns>
struct Memory : SharedMemory<columns, 2, q_stages> {
  using Base = SharedMemory<columns, 2, q_stages>;
  static constexpr int bytes = Base::bytes + q_stages * static_cast<int>(sizeof(int));

  __device__ Memory() {}

  [[nodiscard]] __device__ int& tile_number(int q_stage) const {
    return reinterpret_cast<int*>(this->memory + Base::bytes)[q_stage];
  }
};

/// Computes the visibility of each tile of queries, one block per tile, and sets the counter of the tiles: each of
/// `blocks` blocks has its first tile without it. It is a kernel of its own because a producer has too few registers for
/// the visibility, and because it is the same for all heads.
template <class QueryVisibility>
__global__ void prepare(const __grid_constant__ ForwardTask task, int tile_queries, QueryVisibility* tiles,
                        int* next_tile, int blocks) {
  const int tile = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  tiles[tile].compute(task, tile * tile_queries, thread);
  if (tile == 0 && thread == 0) *next_tile = blocks;
}

/// Starts all copies of a block. One thread calls it.
template <int columns>
__device__ void produce(const Memory<columns>& shared, const ForwardTask& task, const Maps& maps,
                        const TileOrder& order, const typename Memory<columns>::QueryVisibility* tiles,
                        int* next_tile) {
  constexpr int tile_queries = Memory<columns>::tile_queries, bytes = static_cast<int>(sizeof(*tiles));
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

template <class T, int columns>
__global__ void __launch_bounds__(384, 1)
    attend_tiles(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps,
                 const __grid_constant__ TileOrder order,
                 const typename Memory<columns>::QueryVisibility* tiles, int* next_tile) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == 2) {
    setmaxnreg_dec<producer_registers>();
    if (thread % 128 == 0) produce<columns>(shared, task, maps, order, tiles, next_tile);
  } else {
    setmaxnreg_inc<consumer_registers>();
    const PingPong ping_pong(group);
    int number = 0;
    for (int round = 0;; ++round) {
      const int q_stage = round % q_stages;
      mbarrier_wait(shared.q_full(q_stage), static_cast<unsigned>(round / q_stages % 2));
      const int tile = shared.tile_number(q_stage);
      if (tile == no_tile) break;
      const QueryTile q_tile(order, tile, Memory<columns>::tile_queries);
      attend_pingpong<T, columns>(shared, task, q_tile, group, thread % 128, q_stage, ping_pong, number);
      mbarrier_arrive_for_warp(shared.q_empty(q_stage), thread % 32);
    }
    ping_pong.finish();
  }
}

void attend(const ForwardTask& task, Type type, const DeviceTraits& device, StreamHandle stream) {
  if (task.queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    using QueryVisibility = typename Memory<columns>::QueryVisibility;
    constexpr int tile_queries = Memory<columns>::tile_queries;
    const TileOrder order = order_of_queries(task, tile_queries);
    const int blocks = std::min(order.count, device.multiprocessors);
    const Scratch<QueryVisibility> tiles(order.tiles, stream);
    const Scratch<int> next_tile(1, stream);
    launch(prepare<QueryVisibility>, {order.tiles, tile_queries}, stream, task, tile_queries, tiles.data(),
           next_tile.data(), blocks);
    launch(attend_tiles<T, columns>, {blocks, 384, Memory<columns>::bytes}, stream, task, maps_of(task, type),
           order, tiles.data(), next_tile.data());
  });
}

}  // namespace

extern const ForwardKernel forward_6_persistent{
    6, "persistent", "a block per multiprocessor takes tile after tile", true, takes<Memory<128>>, attend};

}  // namespace ring_attention::cuda
