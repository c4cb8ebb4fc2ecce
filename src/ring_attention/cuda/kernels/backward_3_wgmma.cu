/// \file
/// Kernel 3 of the backward: wgmma, TMA and warp specialization. A producer warp copies tiles, two consumer warpgroups
/// compute the products of lesson 07.
///
/// Source: Shah et al., FlashAttention-3, arXiv 2407.08608, appendix B.1. backward_2_mma.cu has the formulas. Two
/// variants:
///
/// - `wgmma-atomics`: each block owns keys and adds its contribution to dQ with atomics: five products.
/// - `wgmma` is deterministic. Blocks that own keys compute dK and dV, then blocks that own queries compute dQ: seven
///   products.
///
/// Expects a dim of at most 128 that is a multiple of 8.
#include "ring_attention/cuda/kernels/common/backward_dkdv_wgmma.cuh"
#include "ring_attention/cuda/kernels/common/backward_dq_wgmma.cuh"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

void differentiate(const BackwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  const int key_tiles = tiles_of_keys(task, tile_rows);
  if (key_tiles == 0 || task.queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    const BackwardMaps maps = maps_of(task, type);
    launch_dkdv<T, columns, DqSum::other_grid>(task, maps, key_tiles, stream);
    const TileOrder order = order_of_queries(task, tile_rows);
    launch(backward_dq_kernel<T, columns>, {order.count, backward_threads, QueriesMemory<columns>::bytes},
           stream, task, maps, order);
  });
}

}  // namespace

extern const BackwardKernel backward_3_wgmma{3,
                                             "wgmma",
                                             "wgmma and TMA, a second grid for dQ",
                                             true,
                                             takes<KeysMemory<64>, KeysMemory<128>, QueriesMemory<128>>,
                                             differentiate};

extern const BackwardKernel backward_3_wgmma_with_atomics{3,
                                                          "wgmma-atomics",
                                                          "wgmma and TMA, dQ by atomics",
                                                          false,
                                                          takes<KeysMemory<64>, KeysMemory<128>>,
                                                          differentiate_by_keys<DqSum::atomics>};

}  // namespace ring_attention::cuda
