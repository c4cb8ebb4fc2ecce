/// \file
/// The steps of the ladder, each defined in a file of its own in cuda/kernels/. One line a step.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

// forward
[[nodiscard]] ForwardKernel forward_0_naive();
[[nodiscard]] ForwardKernel forward_1_tiled();
[[nodiscard]] ForwardKernel forward_2_mma();
[[nodiscard]] ForwardKernel forward_3_wgmma();
[[nodiscard]] ForwardKernel forward_4_warp_specialized();
[[nodiscard]] ForwardKernel forward_5_pingpong();
[[nodiscard]] ForwardKernel forward_6_persistent();

// backward
[[nodiscard]] BackwardKernel backward_1_tiled();
[[nodiscard]] BackwardKernel backward_1_tiled_with_atomics();
[[nodiscard]] BackwardKernel backward_2_mma();
[[nodiscard]] BackwardKernel backward_2_mma_with_atomics();
[[nodiscard]] BackwardKernel backward_3_wgmma();
[[nodiscard]] BackwardKernel backward_3_wgmma_with_atomics();

}  // namespace ring_attention::cuda
