/// \file
/// Step 5: the softmax is hidden. What changed since step 4: two warpgroups take turns, and in each the next QK is issued
/// before the last PV (hopper_pingpong.cuh has both, and the picture). The exponentials take half as
/// long as the products at a dim of 128; now they run beside them.
///
/// Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_pingpong.cuh"
#include "ring_attention/cuda/ladder.hpp"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: the ladder's own words

template <int columns>
using Memory = SharedMemory<columns, 2>;

template <class T, int columns>
__global__ void __launch_bounds__(384, 1)
    attend_tile(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  const QueryTile q_tile(task, static_cast<int>(blockIdx.x), Memory<columns>::tile_queries);
  shared.extents(0).visibility(task, q_tile.first_query, thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  int number = 0;
  if (group == 2) {
    setmaxnreg_dec<copying_registers>();
    if (thread % 128 == 0) {
      shared.copy_q(maps.q, q_tile, 0);
      copy_all_keys(shared, task, maps, q_tile, shared.extents(0), number);
    }
  } else {
    setmaxnreg_inc<computing_registers>();
    const PingPong turns(group);
    mbarrier_wait(shared.q_full(0), 0);
    attend_overlapped<T, columns>(shared, task, q_tile, group, thread % 128, 0, turns, number);
    turns.end();
  }
}

void attend(const ForwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  launch_on_tiles<384>(task, type, stream, [&]<class T, int columns>() { return attend_tile<T, columns>; });
}

}  // namespace

ForwardKernel forward_5_pingpong() {
  return {5, "pingpong", "two warpgroups in turns, next QK before last PV", true, takes<Memory<128>>, attend};
}

}  // namespace ring_attention::cuda
