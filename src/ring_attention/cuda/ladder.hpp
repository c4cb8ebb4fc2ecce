/// \file
/// The steps of the ladder, each defined in a file of its own in cuda/kernels/. One line a step.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

// forward
[[nodiscard]] ForwardKernel naive_forward();
[[nodiscard]] ForwardKernel tiled_forward();
[[nodiscard]] ForwardKernel mma_forward();
[[nodiscard]] ForwardKernel wgmma_forward();
[[nodiscard]] ForwardKernel roles_forward();
[[nodiscard]] ForwardKernel overlapped_forward();
[[nodiscard]] ForwardKernel persistent_forward();

// backward
[[nodiscard]] BackwardKernel tiled_backward();
[[nodiscard]] BackwardKernel tiled_backward_with_atomics();
[[nodiscard]] BackwardKernel mma_backward();
[[nodiscard]] BackwardKernel mma_backward_with_atomics();
[[nodiscard]] BackwardKernel wgmma_backward();
[[nodiscard]] BackwardKernel wgmma_backward_with_atomics();

}  // namespace ring_attention::cuda
