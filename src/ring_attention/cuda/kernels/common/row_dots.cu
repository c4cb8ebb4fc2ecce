/// \file
/// delta = rowsum(dO * O), which the derivative of the softmax subtracts. One warp per row.
#include "ring_attention/cuda/kernels.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

constexpr int threads = 128;
constexpr int warp = 32;

template <class T>
__global__ void dots(const float* out, const T* grad_out, float* delta, Index rows, int dim) {
  const Index row = static_cast<Index>(blockIdx.x) * (threads / warp) + threadIdx.x / warp;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  float sum = 0;
  if (row < rows)
    for (int c = lane; c < dim; c += warp) sum += out[row * dim + c] * widened(grad_out[row * dim + c]);
  for (int distance = warp / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  if (row < rows && lane == 0) delta[row] = sum;
}

}  // namespace

void row_dots(const float* out, const void* grad_out, float* delta, Index rows, int dim, Type type,
              StreamHandle stream) {
  const LaunchConfig grid{dim3(static_cast<unsigned>(blocks_of(rows, Index{threads / warp}))), dim3(threads)};
  with_type(type, [&]<class T>(T) {
    launch(dots<T>, grid, stream, out, static_cast<const T*>(grad_out), delta, rows, dim);
  });
}

}  // namespace ring_attention::cuda
