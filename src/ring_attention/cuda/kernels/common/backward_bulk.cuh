/// \file
/// dQ through shared memory. The warps that multiply store their part of dQ of a tile of queries to shared memory. A spare
/// warp starts copies that add its rows to device memory:
///
///      both warpgroups   | products | store dQ | products      | store dQ |
///      spare warp                              | starts copies |          | starts copies |
///
/// So the warps that multiply issue a few stores in place of many atomics, each with an address of its own.
///
/// Source: FlashAttention-3, which adds dQ in the same way (store_dq in mainloop_bwd_sm90_tma_gmma_ws.hpp).
#pragma once

#include "ring_attention/cuda/kernels/common/backward_keys_memory.cuh"

namespace ring_attention::cuda::hopper {

/// A buffer for dQ of one tile of queries, and two mbarriers. Rows are 32 bytes longer than their columns,
/// so that the eight rows that a warp stores at once are in different banks.
template <int columns>
struct BulkMemory : KeysMemory<columns> {
  using Base = KeysMemory<columns>;
  static constexpr int dq_row_bytes = 4 * columns + 32;
  static constexpr int dq_offset = (Base::bytes + 15) / 16 * 16;
  static constexpr int stored_offset = dq_offset + Base::rows * dq_row_bytes;
  static constexpr int bytes = stored_offset + 2 * 8;

  __device__ BulkMemory() {}

  [[nodiscard]] __device__ unsigned dq(int row, int column) const {
    return this->at(dq_offset + row * dq_row_bytes + 4 * column);
  }
  /// Its phase ends when all warps have stored their part of dQ.
  [[nodiscard]] __device__ unsigned stored() const { return this->at(stored_offset); }
  /// Its phase ends when the copies have read dQ.
  [[nodiscard]] __device__ unsigned read() const { return this->at(stored_offset + 8); }

  __device__ void init_barriers() const {
    mbarrier_init(stored(), 8);
    mbarrier_init(read(), 1);
    Base::init_barriers(8 + 1);
  }
};

/// Adds the tiles that the other warps store. One warp calls it.
template <int columns>
__device__ void add_stored_dq(const BulkMemory<columns>& shared, const BackwardTask& task) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int number = 0;; ++number) {
    const int stage = number % stages;
    mbarrier_wait(shared.full(stage), static_cast<unsigned>(number / stages % 2));
    const int batch_head = shared.metadata(stage).batch_head,
              first_query = shared.metadata(stage).first_query;
    if (batch_head < 0) return;
    mbarrier_arrive_for_warp(shared.empty(stage), lane);
    mbarrier_wait(shared.stored(), static_cast<unsigned>(number % 2));
    float* const to = task.grad_q + (static_cast<Index>(batch_head) * task.queries + first_query) * task.dim;
    const int rows = min(KeysMemory<columns>::rows, task.queries - first_query);
    for (int row = lane; row < rows; row += 32)
      bulk_add(to + static_cast<Index>(row) * task.dim, shared.dq(row, 0), 4 * task.dim);
    bulk_add_wait_read();
    mbarrier_arrive_for_warp(shared.read(), lane);
  }
}

}  // namespace ring_attention::cuda::hopper
