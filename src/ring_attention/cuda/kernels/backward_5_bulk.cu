/// \file
/// Kernel 5 of the backward: dQ goes through shared memory, and copies add it to device memory (backward_bulk.cuh). What
/// changed since `wgmma-atomics`: the warps that multiply have no atomics.
///
/// Expects a dim of 72 to 128 that is a multiple of 8: for 64 columns a thread has no register left for it.
#include "ring_attention/cuda/kernels/common/backward_dkdv_wgmma.cuh"

namespace ring_attention::cuda {
namespace {

using namespace hopper;  // NOLINT: what the Hopper kernels share

bool takes_wide(const DeviceTraits& device, Type type, int dim) {
  return dim > 64 && takes<BulkMemory<128>>(device, type, dim);
}

}  // namespace

extern const BackwardKernel backward_5_bulk{.number = 5,
                                            .name = "wgmma-bulk",
                                            .computes = "wgmma and TMA, dQ by copies that add",
                                            .deterministic = false,
                                            .takes = takes_wide,
                                            .launch = differentiate_by_keys<DqSum::bulk>,
                                            .automatic = false};

}  // namespace ring_attention::cuda
