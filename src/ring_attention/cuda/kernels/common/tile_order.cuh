/// \file
/// Which tile a block computes: the order of the tiles of all heads. It is arithmetic only; a test computes with it how
/// evenly the multiprocessors are loaded (tests/cuda/load_balance_test.cpp).
#pragma once

#include "ring_attention/cuda/grid.cuh"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda::hopper {

constexpr Index cached_bytes = 24 << 20;  ///< that fit into the L2 cache with certainty

/// The order of the tiles of `heads` heads with `tiles` tiles each. Heads are processed in sections of whole groups whose
/// data, bytes_of_group each, fit into the cache together. In a section the order is: the first tile of each head, the
/// second tile of each head, ... Sections have the same number of groups, or one more: in a short section at the end a few
/// long tiles would be left for a few multiprocessors. The host makes it, because a producer has too few registers.
struct TileOrder {
  int count;               ///< of all tiles
  int tiles;               ///< of a head
  int group;               ///< heads
  int short_section;       ///< heads
  int in_longer_sections;  ///< heads. The sections that have one group more come first

  TileOrder(int tiles_of_head, int heads, int heads_of_group, Index bytes_of_group)
      : count(tiles_of_head * heads), tiles(tiles_of_head), group(heads_of_group) {
    const int groups = heads / group;
    const Index cached = cached_bytes / bytes_of_group;
    const int fitting = cached < 1 ? 1 : cached < groups ? static_cast<int>(cached) : groups;
    const int sections = blocks_of(groups, fitting);
    short_section = groups / sections * group;
    in_longer_sections = groups % sections * (short_section + group);
  }

  struct Place {
    int head, tile;
  };
  [[nodiscard]] __device__ Place at(int number) const {
    const bool is_longer = number < in_longer_sections * tiles;
    const int heads_here = is_longer ? short_section + group : short_section,
              first = is_longer ? 0 : in_longer_sections;
    const int from_first = number - first * tiles;
    const int section = from_first / (heads_here * tiles);
    const int in_section = from_first - section * heads_here * tiles, tile = in_section / heads_here;
    return {first + section * heads_here + in_section - tile * heads_here, tile};
  }
};

inline TileOrder order_of_queries(const AttentionTask& task, int tile_queries) {
  return {blocks_of(task.queries, tile_queries), task.batch * task.heads, task.heads / task.kv_heads,
          4 * static_cast<Index>(task.keys + 1) * task.dim};  // K and V
}

/// The order of tiles of keys, of the KV heads. Under a causal mask most queries see the first keys, which come first.
inline TileOrder order_of_keys(const AttentionTask& task, int tiles) {
  return {tiles, task.batch * task.kv_heads, 1,
          4 * static_cast<Index>(task.heads / task.kv_heads) * task.queries * task.dim};  // Q and dO
}

/// A tile of queries of one head. Under a causal mask the last tiles see the most keys. They come first, so that the
/// blocks end at about the same time.
struct QueryTile {
  int batch_head, first_query;

  __device__ QueryTile(const TileOrder& order, int number, int tile_queries) {
    const TileOrder::Place place = order.at(number);
    batch_head = place.head;
    first_query = (order.tiles - 1 - place.tile) * tile_queries;
  }
  [[nodiscard]] __device__ Index query_row(const AttentionTask& task) const {
    return static_cast<Index>(batch_head) * task.queries + first_query;
  }
  [[nodiscard]] __device__ int batch_kv_head(const AttentionTask& task) const {
    return batch_head / (task.heads / task.kv_heads);
  }
};

}  // namespace ring_attention::cuda::hopper
