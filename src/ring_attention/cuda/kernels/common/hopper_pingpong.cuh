/// \file
/// Keeps the tensor cores busy during the softmax, with two kinds of overlap. Used by kernels 5, 6 and 7.
///
/// Source: Shah et al., FlashAttention-3, arXiv 2407.08608, sections 3.1 and 3.2, algorithm 2.
///
///      group 0   QK1 PV0 | softmax 1 | QK2 PV1 | softmax 2 |
///      group 1           | QK1 PV0   | softmax | QK2 PV1   | ...
///
/// Within a group: the next QK is issued before the last PV, and the softmax runs while that PV is computed. Between
/// groups (ping-pong): they issue their products in turns, so one computes its softmax while the other multiplies.
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_forward.cuh"

namespace ring_attention::cuda::hopper {

/// Two warpgroups issue products in turns, with named barriers 1 and 2. Both have the same number of turns.
class PingPong {
 public:
  __device__ explicit PingPong(int group) : group_(group) {
    if (group_ == 1) pass_turn();  // group 0 begins
  }
  __device__ void wait_turn() const { named_barrier_sync<256>(1 + group_); }
  __device__ void pass_turn() const { named_barrier_arrive<256>(2 - group_); }
  /// After the last turn: completes the barrier at which group 1 has arrived.
  __device__ void finish() const {
    if (group_ == 0) wait_turn();
  }

 private:
  int group_;
};

/// The forward of one tile of queries with all keys that it sees. `number` counts the tiles of keys of this block, over
/// all of its tiles of queries. Releases Q and its visibility after their last use.
template <class T, int columns, bool mask_by_bits = false, class Memory>
__device__ __forceinline__ void attend_pingpong(const Memory& shared, const ForwardTask& task,
                                                const QueryTile& q_tile, int group, int thread, int q_stage,
                                                const PingPong& ping_pong, int& number) {
  const auto& visibility = shared.visibility(q_stage);
  const bool is_warp_leader = thread % 32 == 0;  // arrives at mbarriers for its warp
  const auto parity_of = [](int n) { return static_cast<unsigned>(n / stages % 2); };
  constexpr int keys = Memory::keys_of_tile;
  WarpgroupTile<T, columns, keys, mask_by_bits> state(task, q_tile, group, thread);
  state.load();
  KeyTiles tile(visibility, task.ranges, keys);
  const bool any = tile.more();
  if (any) {
    float factor[2];
    mbarrier_wait(shared.k_full(number % stages), parity_of(number));
    ping_pong.wait_turn();
    state.start_scores(shared.q(q_stage, group), shared.k(number % stages));
    ping_pong.pass_turn();
    wgmma_wait<0>();
    wgmma_fence_result(state.s);
    if (is_warp_leader) mbarrier_arrive(shared.k_empty(number % stages));
    state.softmax_tile(visibility, tile.range(), tile.first(), factor);
    state.rescale(factor);
    state.pack();

    for (tile.next(); tile.more(); tile.next()) {
      const int last = number++;
      mbarrier_wait(shared.v_full(last % stages), parity_of(last));
      mbarrier_wait(shared.k_full(number % stages), parity_of(number));
      ping_pong.wait_turn();
      state.start_scores(shared.q(q_stage, group), shared.k(number % stages));
      state.start_values(shared.v(last % stages));
      ping_pong.pass_turn();
      wgmma_wait<1>();
      wgmma_fence_result(state.s);
      if (is_warp_leader) mbarrier_arrive(shared.k_empty(number % stages));
      state.softmax_tile(visibility, tile.range(), tile.first(), factor);
      wgmma_wait<0>();
      wgmma_fence_result(state.o);
      if (is_warp_leader) mbarrier_arrive(shared.v_empty(last % stages));
      state.rescale(factor);
      state.pack();
    }
  }
  mbarrier_arrive_for_warp(shared.q_empty(q_stage), thread % 32);
  if (any) {
    mbarrier_wait(shared.v_full(number % stages), parity_of(number));
    state.start_values(shared.v(number % stages));
    wgmma_wait<0>();
    wgmma_fence_result(state.o);
    if (is_warp_leader) mbarrier_arrive(shared.v_empty(number % stages));
    ++number;
  }
  state.store();
}

}  // namespace ring_attention::cuda::hopper
