/// \file
/// Kernel 4 of the backward: deterministic with five products. What changed since kernel 3: dQ needs no second grid. The
/// blocks of keys add to a tile of queries in turns, the last keys first (backward_turns.cuh).
///
/// The kernel is slower than kernel 3 on an H100, so "auto" does not choose it. Expects a dim of at most 128 that is a
/// multiple of 8.
#include "ring_attention/cuda/kernels/common/backward_dkdv_wgmma.cuh"

namespace ring_attention::cuda {
using namespace hopper;  // NOLINT: what the Hopper kernels share

extern const BackwardKernel backward_4_ordered{.number = 4,
                                               .name = "wgmma-ordered",
                                               .computes = "wgmma and TMA, dQ in turns",
                                               .deterministic = true,
                                               .takes = takes<TurnsMemory<64>, TurnsMemory<128>>,
                                               .launch = differentiate_by_keys<DqSum::turns>,
                                               .automatic = false};

}  // namespace ring_attention::cuda
