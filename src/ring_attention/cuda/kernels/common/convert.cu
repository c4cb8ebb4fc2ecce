/// \file
/// Element-wise conversions and sums. Memory limits their speed.
#include "ring_attention/cuda/kernels/common/convert.hpp"

#include <algorithm>

#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

constexpr int threads = 256;
constexpr Index most_blocks = 4096;  // threads loop over more elements with the stride of the grid

LaunchConfig grid_of(Index count) {
  return {dim3(static_cast<unsigned>(std::min(blocks_of(count, Index{threads}), most_blocks))),
          dim3(threads)};
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

}  // namespace ring_attention::cuda
