/// \file
/// Which tile a block computes: the order of the tiles of all heads. It is arithmetic only; a test computes with it how
/// evenly the multiprocessors are loaded (tests/cuda/load_balance_test.cpp).
#pragma once

#include "ring_attention/cuda/grid.cuh"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda::hopper {

constexpr Index cached_bytes = 24 << 20;  ///< that fit into the L2 cache with certainty

/// The head and the tile of a block, of `heads` heads with `tiles` tiles each. Heads are processed in sections of whole
/// groups whose data, bytes_of_group each, fit into the cache together. In a section the order is: the first tile of
/// each head, the second tile of each head, ... Sections have the same number of groups, or one more: in a short section
/// at the end a few long tiles would be left for a few multiprocessors.
struct TileOfHead {
  int head, tile;

  __device__ TileOfHead(int number, int tiles, int heads, int group, Index bytes_of_group) {
    const int groups = heads / group;
    const int fitting = max(static_cast<int>(min(cached_bytes / bytes_of_group, Index{groups})), 1);
    const int sections = (groups + fitting - 1) / fitting;
    const int short_section = groups / sections * group;                       // heads
    const int in_long_sections = groups % sections * (short_section + group);  // heads
    const bool is_long = number < in_long_sections * tiles;
    const int heads_here = short_section + (is_long ? group : 0), first = is_long ? 0 : in_long_sections;
    const int from_first = number - first * tiles;
    const int section = from_first / (heads_here * tiles);
    const int in_section = from_first - section * heads_here * tiles;
    head = first + section * heads_here + in_section % heads_here;
    tile = in_section / heads_here;
  }
};

/// A tile of queries of one head. Under a causal mask the last tiles see the most keys. They come first, so that the
/// blocks end at about the same time.
struct QueryTile {
  int batch_head, first_query;

  __device__ QueryTile(const AttentionTask& task, int number, int tile_queries) {
    const int tiles = (task.queries + tile_queries - 1) / tile_queries;
    const TileOfHead work(number, tiles, task.batch * task.heads, task.heads / task.kv_heads,
                          4 * static_cast<Index>(task.keys + 1) * task.dim);  // K and V
    batch_head = work.head;
    first_query = (tiles - 1 - work.tile) * tile_queries;
  }
  [[nodiscard]] __device__ Index query_row(const AttentionTask& task) const {
    return static_cast<Index>(batch_head) * task.queries + first_query;
  }
  [[nodiscard]] __device__ int batch_kv_head(const AttentionTask& task) const {
    return batch_head / (task.heads / task.kv_heads);
  }
};

inline int query_tiles_of(const AttentionTask& task, int tile_queries) {
  return blocks_of(task.queries, tile_queries) * task.batch * task.heads;
}

/// A tile of keys of one KV head, of `tiles` tiles a head. Under a causal mask most queries see the first keys, which
/// come first.
__device__ inline TileOfHead key_tile_of_head(const AttentionTask& task, int number, int tiles) {
  return {number, tiles, task.batch * task.kv_heads, 1,
          8 * static_cast<Index>(task.heads / task.kv_heads) * task.queries * task.dim};  // Q, dO and dQ
}

}  // namespace ring_attention::cuda::hopper
