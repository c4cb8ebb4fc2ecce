/// \file
/// Kernel 4: warp specialization. A producer warp starts the copies, two consumer warpgroups compute.
///
/// Source: Shah et al., FlashAttention-3, arXiv 2407.08608, section 3.1, algorithm 1. What changed since kernel 3: no
/// barrier of the whole block. The producer runs ahead until all buffers are full. A warpgroup waits only for the data
/// that it needs, so one warpgroup can compute its softmax while the other multiplies:
///
///      producer     K0 V0 K1 V1 | K2 ....            waits for "empty", TMA signals "full"
///      group 0         S0 softmax O  S1 softmax O    waits for "full", signals "empty"
///      group 1           S0 softmax O  S1 ..
///
/// A producer needs few registers and a consumer many (64 for S, 64 for O, 32 for P): setmaxnreg moves registers
/// between them. 3 x 128 threads start with 168 each. The producer's warpgroup then has 24 per thread, the consumers
/// have 240. Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_forward.cuh"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

constexpr int groups = 2;
constexpr int threads = 128 * (groups + 1);
template <int columns>
using Memory = SharedMemory<columns, groups>;

template <class T, int columns>
__device__ void consume(const Memory<columns>& shared, const ForwardTask& task, const QueryTile& q_tile,
                        int group, int thread) {
  const auto& visibility = shared.visibility(0);
  WarpgroupTile<T, columns> state(task, q_tile, group, thread);
  state.load();
  KeyTiles tile(visibility, task.ranges, tile_keys);
  mbarrier_wait(shared.q_full(0), 0);
  for (int number = 0; tile.more(); ++number, tile.next()) {
    const int stage = number % stages;
    const auto parity = static_cast<unsigned>(number / stages % 2);
    mbarrier_wait(shared.k_full(stage), parity);
    state.start_scores(shared.q(0, group), shared.k(stage));
    wgmma_wait<0>();
    wgmma_fence_result(state.s);
    if (thread % 32 == 0) mbarrier_arrive(shared.k_empty(stage));
    float factor[2];
    state.softmax_tile(visibility, tile.range(), tile.first(), factor);
    state.rescale(factor);
    state.pack();
    mbarrier_wait(shared.v_full(stage), parity);
    state.start_values(shared.v(stage));
    wgmma_wait<0>();
    wgmma_fence_result(state.o);
    if (thread % 32 == 0) mbarrier_arrive(shared.v_empty(stage));
  }
  state.store();
}

template <class T, int columns>
__global__ void __launch_bounds__(threads, 1)
    attend_tile(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps,
                const __grid_constant__ TileOrder order) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  const QueryTile q_tile(order, static_cast<int>(blockIdx.x), Memory<columns>::tile_queries);
  shared.visibility(0).compute(task, q_tile.first_query, thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == groups) {
    setmaxnreg_dec<producer_registers>();
    if (thread % 128 == 0) {
      shared.load_q(maps.q, q_tile, 0);
      int number = 0;
      load_all_keys(shared, task, maps, q_tile, shared.visibility(0), number);
    }
  } else {
    setmaxnreg_inc<consumer_registers>();
    consume<T, columns>(shared, task, q_tile, group, thread % 128);
  }
}

void attend(const ForwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  launch_on_tiles<threads>(task, type, stream,
                           [&]<class T, int columns>() { return attend_tile<T, columns>; });
}

}  // namespace

extern const ForwardKernel forward_4_warp_specialized{
    4, "warp-specialized", "a producer warp, two consumer warpgroups", true, takes<Memory<128>>, attend};

}  // namespace ring_attention::cuda
