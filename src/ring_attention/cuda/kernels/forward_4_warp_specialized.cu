/// \file
/// Step 4: roles. One warp only copies, two warpgroups only compute.
///
/// Source: Shah et al., FlashAttention-3, arXiv 2407.08608, section 3.1, algorithm 1. What changed since step 3: no
/// barrier of the whole block. A producer runs ahead as far as there are buffers; a warpgroup waits only for the data it
/// needs, and is in its softmax while another multiplies:
///
///      producer     K0 V0 K1 V1 | K2 ....            waits for "empty", says "full"
///      group 0         S0 softmax O  S1 softmax O    waits for "full", says "empty"
///      group 1           S0 softmax O  S1 ..
///
/// A producer needs few registers and a consumer many (64 of S, 64 of O, 32 of P): setmaxnreg moves them. 3 x 128 threads
/// start with 168 each; the producer's keep 24, the others take 240. Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_forward.cuh"
#include "ring_attention/cuda/ladder.hpp"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: the ladder's own words

constexpr int groups = 2;
constexpr int threads = 128 * (groups + 1);
template <int columns>
using Memory = SharedMemory<columns, groups>;

template <class T, int columns>
__device__ void consume(const Memory<columns>& shared, const ForwardTask& task, const QueryTile& q_tile,
                        int group, int thread) {
  const auto& extents = shared.extents(0);
  Queries<T, columns> mine(task, q_tile, group, thread);
  mine.begin();
  KeyTiles tile(extents, task.ranges, tile_keys);
  mbarrier_wait(shared.q_full(0), 0);
  for (int number = 0; tile.more(); ++number, tile.next()) {
    const int stage = number % stages;
    const auto parity = static_cast<unsigned>(number / stages % 2);
    mbarrier_wait(shared.k_full(stage), parity);
    mine.start_scores(shared.q(0, group), shared.k(stage));
    wgmma_wait<0>();
    wgmma_fence_result(mine.s);
    if (thread % 32 == 0) mbarrier_arrive(shared.k_empty(stage));
    float keep[2];
    mine.softmax_tile(extents, tile.range(), tile.first(), keep);
    mine.rescale(keep);
    mine.pack();
    mbarrier_wait(shared.v_full(stage), parity);
    mine.start_values(shared.v(stage));
    wgmma_wait<0>();
    wgmma_fence_result(mine.o);
    if (thread % 32 == 0) mbarrier_arrive(shared.v_empty(stage));
  }
  mine.store();
}

template <class T, int columns>
__global__ void __launch_bounds__(threads, 1)
    attend_tile(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  const QueryTile q_tile(task, static_cast<int>(blockIdx.x), Memory<columns>::tile_queries);
  shared.extents(0).visibility(task, q_tile.first_query, thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  if (group == groups) {
    setmaxnreg_dec<copying_registers>();
    if (thread % 128 == 0) {
      shared.copy_q(maps.q, q_tile, 0);
      int number = 0;
      copy_all_keys(shared, task, maps, q_tile, shared.extents(0), number);
    }
  } else {
    setmaxnreg_inc<computing_registers>();
    consume<T, columns>(shared, task, q_tile, group, thread % 128);
  }
}

void attend(const ForwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  launch_on_tiles<threads>(task, type, stream,
                           [&]<class T, int columns>() { return attend_tile<T, columns>; });
}

}  // namespace

ForwardKernel forward_4_warp_specialized() {
  return {4,    "warp-specialized", "a warp that copies, two warpgroups that compute",
          true, takes<Memory<128>>, attend};
}

}  // namespace ring_attention::cuda
