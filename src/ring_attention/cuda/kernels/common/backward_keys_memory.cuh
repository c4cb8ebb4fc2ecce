/// \file
/// The tiles of queries that pass a block of keys in backward_dkdv_wgmma.cuh: their metadata in shared and in device
/// memory.
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_backward.cuh"
#include "ring_attention/cuda/kernels/common/mma_tiles.cuh"

namespace ring_attention::cuda::hopper {

constexpr int tile_queries_for(int columns) { return 64 * 128 / columns; }

/// Metadata of one tile of queries. cp.async.bulk copies the arrays with one element per query, some of them only if
/// needed; the producer writes the rest.
template <int rows>
struct alignas(16) QueryTileMetadata {
  Statistics<rows> statistics;
  KeyInterval visible[rows];    ///< in the block's range; only if some pair is masked
  int batch_head, first_query;  ///< batch_head < 0: there are no more tiles
  bool unmasked[2];             ///< for each warpgroup: it sees every pair, and there is no bias
};

/// Metadata of all queries, in device memory, padded to whole tiles for cp.async.bulk.
template <int rows>
struct AllQueries {
  float *lse, *delta;                    ///< [batch][heads][rows]
  float* position;                       ///< [rows]
  TileVisibility<rows, 32>* visibility;  ///< [tiles]
  int tiles;
  // Only where dQ is summed in turns (backward_turns.cuh):
  int* turns = nullptr;       ///< [batch][heads][tiles]: how many blocks have added
  int* first_turn = nullptr;  ///< [max_ranges][tiles]: see first_turn_of()

  /// The turn of tile `key_tile` of a range at a tile of queries.
  [[nodiscard]] __device__ int turn(int range, int key_tile, int tile) const {
    return first_turn[range * tiles + tile] - key_tile;
  }
};

constexpr int ds_part_bytes = tile_rows * row_bytes;  ///< 128 keys and 64 queries of dS^T
/// The extra bytes are two buffers for dS^T.
template <int columns>
using KeysMemory =
    BackwardMemory<columns, tile_queries_for(columns), QueryTileMetadata<tile_queries_for(columns)>, stages,
                   2 * tile_queries_for(columns) / part_columns * ds_part_bytes>;

/// The turn of the first tile of keys of a range at a tile of queries: the number of tiles of keys after it up to the last
/// one that some of the queries see. In later ranges it counts only tiles that some of them see. Without meaning if the
/// queries see no key of this range.
__device__ inline int first_turn_of(const AttentionTask& task, const auto& visibility, int range) {
  const auto tile_of = [&](int r, int key) {
    return (key - static_cast<int>(task.range[r].first)) / tile_rows;
  };
  int turn = tile_of(range, visibility.of_range(range).any.end - 1);
  for (int r = range + 1; r < task.ranges; ++r) {
    const KeyInterval any = visibility.of_range(r).any;
    if (any.begin < any.end) turn += tile_of(r, any.end - 1) - tile_of(r, any.begin) + 1;
  }
  return turn;
}

/// Fills `all`. A block has a tile of queries of one head, and `rows` threads.
template <int rows>
__global__ void __launch_bounds__(rows)
    prepare_queries(const __grid_constant__ BackwardTask task, const __grid_constant__ AllQueries<rows> all) {
  const int tile = static_cast<int>(blockIdx.x) % all.tiles,
            batch_head = static_cast<int>(blockIdx.x) / all.tiles;
  const int thread = static_cast<int>(threadIdx.x), query = tile * rows + thread;
  const bool exists = query < task.queries;
  const Index row = static_cast<Index>(batch_head) * task.queries + query;
  const Index padded_row = static_cast<Index>(batch_head) * all.tiles * rows + query;
  all.lse[padded_row] = exists ? lse_of(task, row) : infinity;
  all.delta[padded_row] = exists ? task.delta[row] : 0;
  if (all.turns != nullptr && thread == 0) all.turns[blockIdx.x] = 0;
  if (batch_head > 0) return;
  all.position[query] =
      exists && task.alibi_slope != nullptr ? from_first_key(task, task.position[query]) : 0;
  all.visibility[tile].compute(task, tile * rows, thread);
  if (all.turns == nullptr) return;
  __syncthreads();  // all threads have written the visibility
  if (thread < task.ranges)
    all.first_turn[thread * all.tiles + tile] = first_turn_of(task, all.visibility[tile], thread);
}

}  // namespace ring_attention::cuda::hopper
