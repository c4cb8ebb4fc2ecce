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

template <bool atomic_dq>
void differentiate(const BackwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  const int key_tiles = tiles_of_keys(task, tile_rows);
  if (key_tiles == 0 || task.queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    constexpr int rows = KeysMemory<columns>::rows;
    const int heads = task.batch * task.heads, query_tiles = blocks_of(task.queries, rows);
    const Index padded = static_cast<Index>(query_tiles) * rows;
    const Scratch<float> floats((2 * heads + 1) * padded, stream);
    const Scratch<TileVisibility<rows, 32>> visibility(query_tiles, stream);
    float* const delta = floats.data() + heads * padded;
    const AllQueries<rows> all{floats.data(), delta, delta + heads * padded, visibility.data(), query_tiles};
    launch(prepare_queries<rows>, {query_tiles * heads, rows}, stream, task, all);
    const BackwardMaps maps = maps_of(task, type);
    const TileOrder keys = order_of_keys(task, key_tiles), queries = order_of_queries(task, tile_rows);
    launch(backward_dkdv_kernel<T, columns, atomic_dq>,
           {keys.count, backward_threads, KeysMemory<columns>::bytes}, stream, task, maps, all, keys);
    if constexpr (!atomic_dq)
      launch(backward_dq_kernel<T, columns>, {queries.count, backward_threads, QueriesMemory<columns>::bytes},
             stream, task, maps, queries);
  });
}

template <class... Memories>
bool takes_all(const DeviceTraits& device, Type type, int dim) {
  return (takes<Memories>(device, type, dim) && ...);
}

}  // namespace

extern const BackwardKernel backward_3_wgmma{3,
                                             "wgmma",
                                             "wgmma and TMA, a second grid for dQ",
                                             true,
                                             takes_all<KeysMemory<64>, KeysMemory<128>, QueriesMemory<128>>,
                                             differentiate<false>};

extern const BackwardKernel backward_3_wgmma_with_atomics{3,
                                                          "wgmma-atomics",
                                                          "wgmma and TMA, dQ by atomics",
                                                          false,
                                                          takes_all<KeysMemory<64>, KeysMemory<128>>,
                                                          differentiate<true>};

}  // namespace ring_attention::cuda
