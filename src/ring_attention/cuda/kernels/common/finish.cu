/// \file
/// Turns (o, m, l) into (out, lse). One warp per row.
#include "ring_attention/cuda/kernels/common/finish.hpp"

#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"

namespace ring_attention::cuda {
namespace {

constexpr int warp = 32;
constexpr int rows_of_block = 4;

__global__ void finish(float* o, float* m, const float* l, Index rows, int dim) {
  const Index row = static_cast<Index>(blockIdx.x) * rows_of_block + threadIdx.x / warp;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  if (row >= rows) return;
  const float sum = l[row];
  for (int c = lane; c < dim; c += warp) o[row * dim + c] = sum == 0 ? 0 : o[row * dim + c] / sum;
  if (lane == 0) m[row] = sum == 0 ? -infinity : ln_2 * m[row] + logf(sum);
}

}  // namespace

void finish_rows(float* o, float* m, const float* l, Index rows, int dim, StreamHandle stream) {
  const Index blocks = blocks_of(rows, Index{rows_of_block});
  launch(finish, LaunchConfig{dim3(static_cast<unsigned>(blocks)), dim3(rows_of_block * warp)}, stream, o, m,
         l, rows, dim);
}

}  // namespace ring_attention::cuda
