/// \file
/// The order of the additions to dQ. Many blocks of keys add to the same tile of queries. Rounded sums depend on the order,
/// so without one the last bits of dQ differ from run to run.
///
/// Here the blocks add in the reverse order of their keys. Each tile of queries of a head has a counter in device memory:
/// the number of blocks that have added to it. A block adds when the counter shows its turn, the number of blocks before
/// it that add to this tile. Then it increments the counter:
///
///      counter of a tile of queries    0          1          2          3
///      block of keys 2                 | adds |
///      block of keys 1                            | adds |
///      block of keys 0                                       | adds |
///
/// One thread of a spare warp waits for the counter, while the other warps multiply.
///
/// Each block goes through the queries in ascending order. Under a causal mask the first queries that see its keys see no
/// later keys, so a block has turn 0 there and does not wait. In the order of the keys it would have the last turn there:
/// it would wait until the block of the first keys has come to these queries, and occupy a multiprocessor. Without a mask
/// the blocks go through the queries one tile behind each other in either order.
///
/// The blocks are numbered in the order of their turns (key_tile_in_turns), so a block waits for blocks with lower numbers
/// only. A GPU starts the blocks of a grid in the order of their numbers, so these have started, and there is no deadlock.
/// The price is that under a causal mask the blocks with the most work start last. tests/cuda/ordered_backward_test.cpp
/// computes what both orders cost.
///
/// Source: the option `deterministic` of FlashAttention-3, which has a semaphore for each tile of queries, and the order
/// of its pull request 1893 ("shortest processing time first").
#pragma once

#include "ring_attention/cuda/kernels/common/backward_keys_memory.cuh"

namespace ring_attention::cuda::hopper {

/// The tile of keys of the block that has place `place` in the order of a head's tiles.
[[nodiscard]] __device__ inline int key_tile_in_turns(const TileOrder& order, int place) {
  return order.tiles - 1 - place;
}

/// Two more mbarriers.
template <int columns>
struct TurnsMemory : KeysMemory<columns> {
  using Base = KeysMemory<columns>;
  static constexpr int bytes = Base::bytes + 2 * 8;

  __device__ TurnsMemory() {}

  /// Its phase ends when the turn of the block has come.
  [[nodiscard]] __device__ unsigned turn() const { return this->at(Base::bytes); }
  /// Its phase ends when all warps have added.
  [[nodiscard]] __device__ unsigned added() const { return this->at(Base::bytes + 8); }

  __device__ void init_barriers() const {
    mbarrier_init(turn(), 1);
    mbarrier_init(added(), 8);
    Base::init_barriers();
  }
};

/// Waits for the turn of each tile of queries, and passes it on when the warps have added. One warp calls it. The block
/// has tile `key_tile` of a range.
template <int columns>
__device__ void keep_turns(const TurnsMemory<columns>& shared,
                           const AllQueries<KeysMemory<columns>::rows>& all, int range, int key_tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int number = 0;; ++number) {
    const int stage = number % stages;
    mbarrier_wait(shared.full(stage), static_cast<unsigned>(number / stages % 2));
    const auto& metadata = shared.metadata(stage);
    if (metadata.batch_head < 0) return;
    const int tile = metadata.first_query / KeysMemory<columns>::rows;
    int* const counter = all.turns + static_cast<Index>(metadata.batch_head) * all.tiles + tile;
    const int turn = all.turn(range, key_tile, tile);
    wait_for_value(counter, turn);
    mbarrier_arrive_for_warp(shared.turn(), lane);
    mbarrier_wait(shared.added(), static_cast<unsigned>(number % 2));
    if (lane == 0) store_release(counter, turn + 1);
  }
}

}  // namespace ring_attention::cuda::hopper
