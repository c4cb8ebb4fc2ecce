/// \file
/// How a warpgroup keeps the tensor cores busy during its softmax: two overlaps, used by steps 5 and 6.
///
/// Source: Shah et al., FlashAttention-3, arXiv 2407.08608, sections 3.1 and 3.2, algorithm 2.
///
///      group 0   QK1 PV0 | softmax 1 | QK2 PV1 | softmax 2 |        within a group: the next QK is issued before the
///      group 1           | QK1 PV0   | softmax | QK2 PV1   | ...    last PV, and the softmax runs beside that PV
///
/// Between groups: each issues its products when it is its turn, and so is in its softmax while the other multiplies.
#pragma once

#include "ring_attention/cuda/kernels/common/hopper_forward.cuh"

namespace ring_attention::cuda::hopper {

/// Two warpgroups that issue products in turns, by barriers 1 and 2. Both take the same number of turns.
class PingPong {
 public:
  __device__ explicit PingPong(int group) : group_(group) {
    if (group_ == 1) pass();  // group 0 begins
  }
  __device__ void wait() const { named_barrier_sync<256>(1 + group_); }
  __device__ void pass() const { named_barrier_arrive<256>(2 - group_); }
  /// After the last turn: nobody is left behind at a barrier.
  __device__ void end() const {
    if (group_ == 0) wait();
  }

 private:
  int group_;
};

/// One tile of queries against all keys that they see. `number` counts the tiles of keys of this block, over all of its
/// tiles of queries.
template <class T, int columns, class Memory>
__device__ __forceinline__ void attend_overlapped(const Memory& shared, const ForwardTask& task,
                                                  const QueryTile& q_tile, int group, int thread, int item,
                                                  const PingPong& turns, int& number) {
  const auto& extents = shared.extents(item);
  const bool is_warp_leader = thread % 32 == 0;  // for its warp
  const auto parity_of = [](int n) { return static_cast<unsigned>(n / stages % 2); };
  Queries<T, columns> mine(task, q_tile, group, thread);
  mine.begin();
  KeyTiles tile(extents, task.ranges, tile_keys);
  if (tile.more()) {
    float keep[2];
    mbarrier_wait(shared.k_full(number % stages), parity_of(number));
    turns.wait();
    mine.start_scores(shared.q(item, group), shared.k(number % stages));
    turns.pass();
    wgmma_wait<0>();
    wgmma_fence_result(mine.s);
    if (is_warp_leader) mbarrier_arrive(shared.k_empty(number % stages));
    mine.softmax_tile(extents, tile.range(), tile.first(), keep);
    mine.rescale(keep);
    mine.pack();

    for (tile.next(); tile.more(); tile.next()) {
      const int last = number++;
      mbarrier_wait(shared.v_full(last % stages), parity_of(last));
      mbarrier_wait(shared.k_full(number % stages), parity_of(number));
      turns.wait();
      mine.start_scores(shared.q(item, group), shared.k(number % stages));
      mine.start_values(shared.v(last % stages));
      turns.pass();
      wgmma_wait<1>();
      wgmma_fence_result(mine.s);
      if (is_warp_leader) mbarrier_arrive(shared.k_empty(number % stages));
      mine.softmax_tile(extents, tile.range(), tile.first(), keep);
      wgmma_wait<0>();
      wgmma_fence_result(mine.o);
      if (is_warp_leader) mbarrier_arrive(shared.v_empty(last % stages));
      mine.rescale(keep);
      mine.pack();
    }

    mbarrier_wait(shared.v_full(number % stages), parity_of(number));
    mine.start_values(shared.v(number % stages));
    wgmma_wait<0>();
    wgmma_fence_result(mine.o);
    if (is_warp_leader) mbarrier_arrive(shared.v_empty(number % stages));
    ++number;
  }
  mine.store();
}

}  // namespace ring_attention::cuda::hopper
