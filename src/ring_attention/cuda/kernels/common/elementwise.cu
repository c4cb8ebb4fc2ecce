/// \file
/// Conversions and sums of numbers, and what is computed row by row, one warp per row: the end of the forward, (o, m, l)
/// to (out, lse) and the sinks, and the beginning of the backward, delta = rowsum(dO * O), which the derivative of the
/// softmax subtracts. Memory limits the speed of all of them.
#include "ring_attention/core/shape.hpp"
#include "ring_attention/cuda/kernels.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

constexpr int warp = 32;
constexpr int rows_of_block = 4;
constexpr int threads = 256;         // of a block, one a number
constexpr Index most_blocks = 4096;  // threads loop over more numbers with the stride of the grid

LaunchConfig grid_of_rows(Index rows) {
  return {blocks_of(rows, Index{rows_of_block}), rows_of_block * warp};
}
LaunchConfig grid_of(Index count) {
  const Index blocks = blocks_of(count, Index{threads});
  return {blocks < most_blocks ? blocks : most_blocks, threads};
}

template <class From, class To>
__global__ void convert(const From* from, To* to, Index count) {
  const Index width = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += width)
    to[i] = narrowed<To>(widened(from[i]));
}

__global__ void add_to(float* sum, const float* term, Index count) {
  const Index width = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += width)
    sum[i] += term[i];
}

__global__ void finish(float* o, float* m, const float* l, Index rows, int dim) {
  const Index row = static_cast<Index>(blockIdx.x) * rows_of_block + threadIdx.x / warp;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  if (row >= rows) return;
  const float sum = l[row];
  for (int c = lane; c < dim; c += warp) o[row * dim + c] = out_of(o[row * dim + c], sum);
  if (lane == 0) m[row] = lse_of(m[row], sum);
}

__global__ void add_sink(float* out, float* lse, const float* sinks, Index rows, Index heads, Index queries,
                         int dim) {
  const Index row = static_cast<Index>(blockIdx.x) * rows_of_block + threadIdx.x / warp;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  if (row >= rows) return;
  const float sink = sinks[row / queries % heads], before = lse[row];
  if (sink == -infinity) return;
  const float after = fmaxf(before, sink) + log1pf(expf(-fabsf(before - sink)));
  const float factor = expf(before - after);
  for (int c = lane; c < dim; c += warp) out[row * dim + c] *= factor;
  __syncwarp();  // all lanes have read lse
  if (lane == 0) lse[row] = after;
}

template <class T>
__global__ void dots(const float* out, const T* grad_out, float* delta, Index rows, int dim) {
  const Index row = static_cast<Index>(blockIdx.x) * rows_of_block + threadIdx.x / warp;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  float sum = 0;
  if (row < rows)
    for (int c = lane; c < dim; c += warp) sum += out[row * dim + c] * widened(grad_out[row * dim + c]);
  for (int distance = warp / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffU, sum, distance);
  if (row < rows && lane == 0) delta[row] = sum;
}

}  // namespace

void narrow(const float* from, void* to, Index count, Type type, StreamHandle stream) {
  with_type(type, [&]<class T>(T) {
    launch(convert<float, T>, grid_of(count), stream, from, static_cast<T*>(to), count);
  });
}

void widen(const void* from, float* to, Index count, Type type, StreamHandle stream) {
  with_type(type, [&]<class T>(T) {
    launch(convert<T, float>, grid_of(count), stream, static_cast<const T*>(from), to, count);
  });
}

void add(float* sum, const float* term, Index count, StreamHandle stream) {
  launch(add_to, grid_of(count), stream, sum, term, count);
}

void finish_rows(float* o, float* m, const float* l, Index rows, int dim, StreamHandle stream) {
  launch(finish, grid_of_rows(rows), stream, o, m, l, rows, dim);
}

void add_sinks(float* out, float* lse, const float* sinks, const Shape& out_shape, StreamHandle stream) {
  const Index rows = out_shape.per_row().size();
  launch(add_sink, grid_of_rows(rows), stream, out, lse, sinks, rows, out_shape.heads, out_shape.seq,
         static_cast<int>(out_shape.dim));
}

void row_dots(const float* out, const void* grad_out, float* delta, Index rows, int dim, Type type,
              StreamHandle stream) {
  with_type(type, [&]<class T>(T) {
    launch(dots<T>, grid_of_rows(rows), stream, out, static_cast<const T*>(grad_out), delta, rows, dim);
  });
}

}  // namespace ring_attention::cuda
