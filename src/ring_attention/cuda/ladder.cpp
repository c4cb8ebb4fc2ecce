#include "ring_attention/cuda/ladder.hpp"

namespace ring_attention::cuda {

std::span<const ForwardKernel> forward_kernels() {
  static const ForwardKernel all[]{
      naive_forward(), tiled_forward(),      mma_forward(),        wgmma_forward(),
      roles_forward(), overlapped_forward(), persistent_forward(),
  };
  return all;
}

std::span<const BackwardKernel> backward_kernels() {
  static const BackwardKernel all[]{
      tiled_backward(), tiled_backward_with_atomics(), mma_backward(), mma_backward_with_atomics(),
      wgmma_backward(), wgmma_backward_with_atomics(),
  };
  return all;
}

}  // namespace ring_attention::cuda
