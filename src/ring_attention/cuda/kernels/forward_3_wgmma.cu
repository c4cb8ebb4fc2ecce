/// \file
/// Kernel 3: wgmma, TMA and mbarriers; all warps have the same role.
///
/// Source: Shah et al., FlashAttention-3, arXiv 2407.08608, section 3.1, without its pipelines. What changed since
/// kernel 2: four warps compute a product together, 64 x 128 x 16 at once. wgmma reads K and V from shared memory
/// itself: no ldmatrix, no fragments of K and V in registers. One thread starts each copy of a box; TMA computes the
/// addresses, writes zeros beyond the ends, swizzles, and counts bytes at an mbarrier.
///
///      thread 0: start the copy of tile n + 1  |  all: wait for K n, S = Q K^T, softmax, wait for V n, O += P V
///      --------------------- __syncthreads: all threads have read tile n ---------------------
///
/// The tensor cores are still idle during the softmax, and the exponential units during the products. Expects a dim of
/// at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_forward.cuh"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

constexpr int groups = 2;
constexpr int threads = 128 * groups;
template <int columns>
using Memory = SharedMemory<columns, groups>;

template <class T, int columns>
__global__ void __launch_bounds__(threads, 1)
    attend_tile(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps,
                const __grid_constant__ TileOrder order) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  const QueryTile q_tile(order, static_cast<int>(blockIdx.x), Memory<columns>::tile_queries);
  auto& visibility = shared.visibility(0);
  visibility.compute(task, q_tile.first_query, thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();

  KeyTiles tile(visibility, task.ranges, tile_keys), ahead = tile;
  const auto start_copy = [&](int stage) {
    shared.load_kv(maps.k, shared.k(stage), shared.k_full(stage), ahead.first(), q_tile.batch_kv_head(task));
    shared.load_kv(maps.v, shared.v(stage), shared.v_full(stage), ahead.first(), q_tile.batch_kv_head(task));
    ahead.next();
  };
  const bool any = tile.more();
  if (thread == 0 && any) {
    shared.load_q(maps.q, q_tile, 0);
    start_copy(0);
  }

  WarpgroupTile<T, columns> state(task, q_tile, group, thread % 128);
  state.load();
  if (any) mbarrier_wait(shared.q_full(0), 0);
  for (int number = 0; tile.more(); ++number, tile.next()) {
    const int stage = number % stages;
    const auto parity = static_cast<unsigned>(number / stages % 2);
    if (thread == 0 && ahead.more()) start_copy((number + 1) % stages);

    mbarrier_wait(shared.k_full(stage), parity);
    state.start_scores(shared.q(0, group), shared.k(stage));
    wgmma_wait<0>();
    wgmma_fence_result(state.s);
    float factor[2];
    state.softmax_tile(visibility, tile.range(), tile.first(), factor);
    state.rescale(factor);
    state.pack();
    mbarrier_wait(shared.v_full(stage), parity);
    state.start_values(shared.v(stage));
    wgmma_wait<0>();
    wgmma_fence_result(state.o);
    __syncthreads();
  }
  state.store();
}

void attend(const ForwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  launch_on_tiles<threads>(task, type, stream,
                           [&]<class T, int columns>() { return attend_tile<T, columns>; });
}

}  // namespace

extern const ForwardKernel forward_3_wgmma{
    3, "wgmma", "wgmma, TMA and mbarriers, one role", true, takes<Memory<128>>, attend};

}  // namespace ring_attention::cuda
