// A step of the ladder from which one barrier or wait can be left out, named by the line on which it stands. Compiled
// with RING_ATTENTION_FILE, the kernel's source, whose function is renamed to breakable_kernel by a definition.

#include "ring_attention/cuda/kernels/common/fp32_tiles.cuh"
#include "ring_attention/cuda/kernels/common/mma_tiles.cuh"
#include "ring_attention/cuda/kernels/common/softmax.cuh"
#include "ring_attention/cuda/ladder.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {
__constant__ int missing_line;  // 0: none
}  // namespace

void leave_out(int line) { check(cudaMemcpyToSymbol(missing_line, &line, sizeof(line))); }

}  // namespace ring_attention::cuda

// Not expanded again within themselves. The headers above keep all that they have.
#define __syncthreads() (missing_line == __LINE__ ? (void)0 : __syncthreads())
#define cp_async_wait missing_line == __LINE__ ? (void)0 : cp_async_wait
#include RING_ATTENTION_FILE
