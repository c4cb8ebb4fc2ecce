/// \file
/// Step 3: wgmma, TMA and mbarriers, with one role.
///
/// Source: Shah et al., FlashAttention-3, arXiv 2407.08608, section 3.1, without its pipelines. What changed since step
/// 2: a product is that of four warps, 64 x 128 x 16 at once, and reads K and V from shared memory itself: no ldmatrix,
/// no fragments of K and V in registers. Copies are asked for by one thread, a box at a time; the engine computes
/// addresses, fills the ends with zeros, swizzles, and counts bytes at a barrier in shared memory.
///
///      thread 0 asks for tile n + 1      |  all: wait for K n, S = Q K^T, softmax, wait for V n, O += P V
///      ------------------ __syncthreads: nobody reads tile n any more ------------------
///
/// Tensor cores still idle during the softmax, and the softmax during the products. Expects a dim of at most 128 that is
/// a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_forward.cuh"
#include "ring_attention/cuda/ladder.hpp"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: the ladder's own words

constexpr int groups = 2;
constexpr int threads = 128 * groups;
template <int columns>
using Memory = SharedMemory<columns, groups>;

template <class T, int columns>
__global__ void __launch_bounds__(threads, 1)
    attend_tile(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  const QueryTile q_tile(task, static_cast<int>(blockIdx.x), Memory<columns>::tile_queries);
  auto& extents = shared.extents(0);
  extents.visibility(task, q_tile.first_query, thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();

  KeyTiles tile(extents, task.ranges, tile_keys), ahead = tile;
  const auto start_copy = [&](int stage) {
    shared.copy_kv(maps.k, shared.k(stage), shared.k_full(stage), ahead.first(), q_tile.batch_kv_head(task));
    shared.copy_kv(maps.v, shared.v(stage), shared.v_full(stage), ahead.first(), q_tile.batch_kv_head(task));
    ahead.next();
  };
  const bool any = tile.more();
  if (thread == 0 && any) {
    shared.copy_q(maps.q, q_tile, 0);
    start_copy(0);
  }

  Queries<T, columns> mine(task, q_tile, group, thread % 128);
  mine.begin();
  if (any) mbarrier_wait(shared.q_full(0), 0);
  for (int number = 0; tile.more(); ++number, tile.next()) {
    const int stage = number % stages;
    const auto parity = static_cast<unsigned>(number / stages % 2);
    if (thread == 0 && ahead.more()) start_copy((number + 1) % stages);

    mbarrier_wait(shared.k_full(stage), parity);
    mine.start_scores(shared.q(0, group), shared.k(stage));
    wgmma_wait<0>();
    wgmma_fence_result(mine.s);
    float keep[2];
    mine.softmax_tile(extents, tile.range(), tile.first(), keep);
    mine.rescale(keep);
    mine.pack();
    mbarrier_wait(shared.v_full(stage), parity);
    mine.start_values(shared.v(stage));
    wgmma_wait<0>();
    wgmma_fence_result(mine.o);
    __syncthreads();
  }
  mine.store();
}

void attend(const ForwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  launch_on_tiles<threads>(task, type, stream,
                           [&]<class T, int columns>() { return attend_tile<T, columns>; });
}

}  // namespace

ForwardKernel forward_3_wgmma() {
  return {3, "wgmma", "wgmma, TMA and mbarriers, one role", true, takes<Memory<128>>, attend};
}

}  // namespace ring_attention::cuda
