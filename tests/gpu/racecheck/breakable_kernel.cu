// A kernel from which one barrier or wait can be left out, chosen by its source line. RING_ATTENTION_FILE is the
// kernel's source; a macro renames its function to breakable_kernel.

#include "ring_attention/cuda/kernels/common/fp32_tiles.cuh"
#include "ring_attention/cuda/kernels/common/mma_tiles.cuh"
#include "ring_attention/cuda/kernels/common/softmax.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {
__constant__ int missing_line;  // 0: none
}  // namespace

void leave_out(int line) { check(cudaMemcpyToSymbol(missing_line, &line, sizeof(line))); }

}  // namespace ring_attention::cuda

// The preprocessor does not expand a macro inside itself. The headers above are included before and keep their
// barriers.
#define __syncthreads() (missing_line == __LINE__ ? (void)0 : __syncthreads())
#define cp_async_wait missing_line == __LINE__ ? (void)0 : cp_async_wait
#include RING_ATTENTION_FILE
