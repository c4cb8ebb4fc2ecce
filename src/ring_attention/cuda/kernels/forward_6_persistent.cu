/// \file
/// Kernel 6: persistent blocks, one per multiprocessor, each with a list of tiles. What changed since kernel 5: a block
/// starts its next tile of queries before it has finished the last one. Its producer copies the next Q and its
/// visibility and continues with K and V, while the consumers store o. Q and its visibility have two buffers.
///
/// Under a causal mask the tiles differ in length. They are assigned longest first, in snake order, so that a block
/// with a long tile gets a short one in the next round:
///
///      round   block 0   block 1   block 2
///        0        0         1         2
///        1        5         4         3
///        2        6         7         8
///
/// Only tiles of keys that the mask cuts are tested key by key. The grid has DeviceTraits::multiprocessors blocks,
/// which excludes the ones that the ring reserves for NCCL. Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_pingpong.cuh"

#include <algorithm>

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

constexpr int q_stages = 2;
template <int columns>
using Memory = SharedMemory<columns, 2, q_stages>;

/// The tile of this block in a round.
__device__ int tile_in_round(int round) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

/// Computes the visibility of each tile of queries, one block per tile. It is a kernel of its own because a producer
/// has too few registers for it, and because it is the same for all heads.
template <class QueryVisibility>
__global__ void compute_visibility(const __grid_constant__ ForwardTask task, int tile_queries,
                                   QueryVisibility* tiles) {
  const int tile = static_cast<int>(blockIdx.x);
  tiles[tile].compute(task, tile * tile_queries, static_cast<int>(threadIdx.x));
}

/// Starts all copies of a block. One thread calls it.
template <int columns>
__device__ void produce(const Memory<columns>& shared, const ForwardTask& task, const Maps& maps,
                        const typename Memory<columns>::QueryVisibility* tiles, int all_tiles) {
  constexpr int tile_queries = Memory<columns>::tile_queries, bytes = static_cast<int>(sizeof(*tiles));
  int number = 0;
  for (int round = 0; tile_in_round(round) < all_tiles; ++round) {
    const int q_stage = round % q_stages;
    const QueryTile q_tile(task, tile_in_round(round), tile_queries);
    const auto* const visibility = tiles + q_tile.first_query / tile_queries;
    mbarrier_wait(shared.q_empty(q_stage), static_cast<unsigned>(round / q_stages % 2) ^ 1U);
    shared.load_q(maps.q, q_tile, q_stage, bytes);
    cp_async_bulk(shared_address(&shared.visibility(q_stage)), visibility, bytes, shared.q_full(q_stage));
    load_all_keys(shared, task, maps, q_tile, *visibility, number);
  }
}

template <class T, int columns>
__global__ void __launch_bounds__(384, 1)
    attend_tiles(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps,
                 const typename Memory<columns>::QueryVisibility* tiles, int all_tiles) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == 2) {
    setmaxnreg_dec<producer_registers>();
    if (thread % 128 == 0) produce<columns>(shared, task, maps, tiles, all_tiles);
  } else {
    setmaxnreg_inc<consumer_registers>();
    const PingPong ping_pong(group);
    int number = 0;
    for (int round = 0; tile_in_round(round) < all_tiles; ++round) {
      const int q_stage = round % q_stages;
      const QueryTile q_tile(task, tile_in_round(round), Memory<columns>::tile_queries);
      mbarrier_wait(shared.q_full(q_stage), static_cast<unsigned>(round / q_stages % 2));
      attend_pingpong<T, columns>(shared, task, q_tile, group, thread % 128, q_stage, ping_pong, number);
      if (thread % 32 == 0) mbarrier_arrive(shared.q_empty(q_stage));
    }
    ping_pong.finish();
  }
}

void attend(const ForwardTask& task, Type type, const DeviceTraits& device, StreamHandle stream) {
  if (task.queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    using QueryVisibility = typename Memory<columns>::QueryVisibility;
    constexpr int tile_queries = Memory<columns>::tile_queries;
    const int query_tiles = blocks_of(task.queries, tile_queries),
              all_tiles = query_tiles_of(task, tile_queries);
    const Scratch<QueryVisibility> tiles(query_tiles, stream);
    launch(compute_visibility<QueryVisibility>, {query_tiles, tile_queries}, stream, task, tile_queries,
           tiles.data());
    launch(attend_tiles<T, columns>,
           {std::min(all_tiles, device.multiprocessors), 384, Memory<columns>::bytes}, stream, task,
           maps_of(task, type), tiles.data(), all_tiles);
  });
}

}  // namespace

extern const ForwardKernel forward_6_persistent{
    6, "persistent", "a block per multiprocessor, longest tiles first", true, takes<Memory<128>>, attend};

}  // namespace ring_attention::cuda
