/// \file
/// Step 6: as many blocks as multiprocessors, each with a list of tiles. What changed since step 5: a block starts its
/// next tile of queries while the last one is still being finished. Its producer brings the next Q and what these
/// queries see, and goes on with K and V; the consumers write o meanwhile. Q and what it sees have two buffers.
///
/// Under a causal mask tiles differ in length. They are dealt out longest first, to and fro, so that a block with a long
/// tile gets a short one in the next round:
///
///      round   block 0   block 1   block 2
///        0        0         1         2
///        1        5         4         3
///        2        6         7         8
///
/// Only tiles of keys at the border of the mask are tested key by key. The device's `multiprocessors` may be fewer than
/// it has: the ring leaves some to NCCL. Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_pingpong.cuh"
#include "ring_attention/cuda/ladder.hpp"

#include <algorithm>

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: the ladder's own words

constexpr int items = 2;
template <int columns>
using Memory = SharedMemory<columns, 2, items>;

/// The place of this block in a round.
__device__ int number_in(int round) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

/// What each tile of queries sees: a block a tile. A kernel of its own, because a thread that only copies has too few
/// registers for it, and because all heads see the same.
template <class Extents>
__global__ void look_at_tiles(const __grid_constant__ ForwardTask task, int tile_queries, Extents* tiles) {
  const int tile = static_cast<int>(blockIdx.x);
  tiles[tile].visibility(task, tile * tile_queries, static_cast<int>(threadIdx.x));
}

/// One thread.
template <int columns>
__device__ void produce(const Memory<columns>& shared, const ForwardTask& task, const Maps& maps,
                        const typename Memory<columns>::QueryExtents* tiles, int places) {
  constexpr int tile_queries = Memory<columns>::tile_queries, bytes = static_cast<int>(sizeof(*tiles));
  int number = 0;
  for (int round = 0; number_in(round) < places; ++round) {
    const int item = round % items;
    const QueryTile q_tile(task, number_in(round), tile_queries);
    const auto* const extents = tiles + q_tile.first_query / tile_queries;
    mbarrier_wait(shared.q_empty(item), static_cast<unsigned>(round / items % 2) ^ 1U);
    shared.copy_q(maps.q, q_tile, item, bytes);
    cp_async_bulk(shared_address(&shared.extents(item)), extents, bytes, shared.q_full(item));
    copy_all_keys(shared, task, maps, q_tile, *extents, number);
  }
}

template <class T, int columns>
__global__ void __launch_bounds__(384, 1)
    attend_tiles(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps,
                 const typename Memory<columns>::QueryExtents* tiles, int places) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == 2) {
    setmaxnreg_dec<copying_registers>();
    if (thread % 128 == 0) produce<columns>(shared, task, maps, tiles, places);
  } else {
    setmaxnreg_inc<computing_registers>();
    const PingPong turns(group);
    int number = 0;
    for (int round = 0; number_in(round) < places; ++round) {
      const int item = round % items;
      const QueryTile q_tile(task, number_in(round), Memory<columns>::tile_queries);
      mbarrier_wait(shared.q_full(item), static_cast<unsigned>(round / items % 2));
      attend_overlapped<T, columns>(shared, task, q_tile, group, thread % 128, item, turns, number);
      if (thread % 32 == 0) mbarrier_arrive(shared.q_empty(item));
    }
    turns.end();
  }
}

void attend(const ForwardTask& task, Type type, const DeviceTraits& device, StreamHandle stream) {
  if (task.queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    using Extents = typename Memory<columns>::QueryExtents;
    constexpr int tile_queries = Memory<columns>::tile_queries;
    const int query_tiles = blocks_of(task.queries, tile_queries),
              places = query_tiles_of(task, tile_queries);
    const Scratch<Extents> tiles(query_tiles, stream);
    launch(look_at_tiles<Extents>, LaunchConfig{dim3(static_cast<unsigned>(query_tiles)), dim3(tile_queries)},
           stream, task, tile_queries, tiles.data());
    launch(attend_tiles<T, columns>,
           LaunchConfig{dim3(static_cast<unsigned>(std::min(places, device.multiprocessors))), dim3(384),
                        Memory<columns>::bytes},
           stream, task, maps_of(task, type), tiles.data(), places);
  });
}

}  // namespace

ForwardKernel forward_6_persistent() {
  return {6, "persistent", "a block a multiprocessor, longest tiles first", true, takes<Memory<128>>, attend};
}

}  // namespace ring_attention::cuda
