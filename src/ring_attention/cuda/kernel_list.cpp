// All kernels, in the order of their numbers. Each is defined in a file of its own in cuda/kernels/; here it is
// declared and listed, and src/cmake/sources.cmake compiles it.
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

extern const ForwardKernel forward_0_naive, forward_1_tiled, forward_2_mma, forward_3_wgmma,
    forward_4_warp_specialized, forward_5_pingpong, forward_6_persistent, forward_7_wide;

std::span<const ForwardKernel> forward_kernels() {
  static const ForwardKernel all[]{
      forward_0_naive,    forward_1_tiled,      forward_2_mma, forward_3_wgmma, forward_4_warp_specialized,
      forward_5_pingpong, forward_6_persistent, forward_7_wide};
  return all;
}

extern const BackwardKernel backward_1_tiled, backward_1_tiled_with_atomics, backward_2_mma,
    backward_2_mma_with_atomics, backward_3_wgmma, backward_3_wgmma_with_atomics, backward_4_ordered,
    backward_5_bulk;

std::span<const BackwardKernel> backward_kernels() {
  static const BackwardKernel all[]{
      backward_1_tiled, backward_1_tiled_with_atomics, backward_2_mma,     backward_2_mma_with_atomics,
      backward_3_wgmma, backward_3_wgmma_with_atomics, backward_4_ordered, backward_5_bulk};
  return all;
}

}  // namespace ring_attention::cuda
