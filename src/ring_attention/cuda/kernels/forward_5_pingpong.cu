/// \file
/// Kernel 5: ping-pong scheduling hides the softmax. What changed since kernel 4: the two consumer warpgroups issue
/// their products in turns, and each issues the next QK before the last PV. hopper_pingpong.cuh implements and draws
/// both. At a dim of 128 the exponentials take half as long as the products; now both run at the same time. A mask is a
/// bit for each score, not two comparisons as in the other kernels.
///
/// Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/hopper_pingpong.cuh"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

template <int columns>
using Memory = SharedMemory<columns, 2>;

template <class T, int columns>
__global__ void __launch_bounds__(384, 1)
    attend_tile(const __grid_constant__ ForwardTask task, const __grid_constant__ Maps maps,
                const __grid_constant__ TileOrder order) {
  const Memory<columns> shared;
  const int thread = static_cast<int>(threadIdx.x), group = warpgroup_of(thread);
  const QueryTile q_tile(order, static_cast<int>(blockIdx.x), Memory<columns>::tile_queries);
  shared.visibility(0).compute(task, q_tile.first_query, thread);
  if (thread == 0) shared.init_barriers();
  __syncthreads();
  int number = 0;
  if (group == 2) {
    setmaxnreg_dec<producer_registers>();
    if (thread % 128 == 0) {
      shared.load_q(maps.q, q_tile, 0);
      load_all_keys(shared, task, maps, q_tile, shared.visibility(0), number);
    }
  } else {
    setmaxnreg_inc<consumer_registers>();
    const PingPong ping_pong(group);
    mbarrier_wait(shared.q_full(0), 0);
    attend_pingpong<T, columns, true>(shared, task, q_tile, group, thread % 128, 0, ping_pong, number);
    ping_pong.finish();
  }
}

void attend(const ForwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  launch_on_tiles<384>(task, type, stream, [&]<class T, int columns>() { return attend_tile<T, columns>; });
}

}  // namespace

extern const ForwardKernel forward_5_pingpong{
    5, "pingpong", "two warpgroups in turns, next QK before last PV", true, takes<Memory<128>>, attend};

}  // namespace ring_attention::cuda
