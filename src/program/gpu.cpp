#include "program/gpu.hpp"

#include "cli/own_gpu.hpp"
#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention {

void require_gpus(const Communicator& comm, const DeviceOptions& options) {
#ifndef RING_ATTENTION_HAS_NCCL
  if (options.transport == "nccl")
    throw AgreedError(
        "--transport nccl: this program was built without NCCL: build it with NCCL_ROOT set, or use staged");
#endif
  (void)use_own_gpu(comm, options.share_gpu);
}

}  // namespace ring_attention
