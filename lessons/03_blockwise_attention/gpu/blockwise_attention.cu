// Lesson 03 on a GPU. The same tiles and the same state (o, m, l); what is new is which thread holds what.
//
//                  K tile, V tile: shared memory, loaded by all threads, read by all
//                +------------------------------------------+
//   thread t:    |  s_j = q . k_j   for the keys of the tile |   q, o, m, l of query t: registers of thread t
//                +------------------------------------------+
//
// A block of 64 threads takes 64 queries of one head. What it reads from device memory is used 64 times.
#include "blockwise_attention.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"

namespace ring_attention::lesson_03 {
namespace {

using cuda::infinity;

__global__ void __launch_bounds__(tile_queries) attend(DeviceArrays a, Choices choices) {
  __shared__ float k_tile[tile_keys][dim], v_tile[tile_keys][dim];
  const int thread = static_cast<int>(threadIdx.x), first_query = static_cast<int>(blockIdx.x) * tile_queries;
  const int i = first_query + thread;                                         // this thread's query
  const Index head = static_cast<Index>(blockIdx.y) * a.seq, row = head + i;  // rows of all heads

  float q[dim], o[dim], m = -infinity, l = 0;
#pragma unroll
  for (int c = 0; c < dim; ++c) {
    q[c] = i < a.seq ? a.scale * a.q[row * dim + c] : 0;
    o[c] = 0;
  }

  const int end = min(a.seq, first_query + tile_queries);  // causal: no query of this block sees a later key
  for (int first_key = 0; first_key < end; first_key += tile_keys) {
    __syncthreads();  // all threads have used the tile before
    for (int e = thread; e < tile_keys * dim; e += tile_queries) {
      const int key = first_key + e / dim;
      const Index at = (head + key) * dim + e % dim;
      k_tile[e / dim][e % dim] = key < a.seq ? a.k[at] : 0;
      v_tile[e / dim][e % dim] = key < a.seq ? a.v[at] : 0;
    }
    if (choices.barrier) __syncthreads();  // all of the tile is loaded

    float s[tile_keys], top = m;  // lesson 02: the maximum moves, and all that was summed moves with it
#pragma unroll
    for (int j = 0; j < tile_keys; ++j) {
      s[j] = 0;
#pragma unroll
      for (int c = 0; c < dim; ++c) s[j] += q[c] * k_tile[j][c];
      if (first_key + j > i) s[j] = -infinity;
      top = fmaxf(top, s[j]);
    }
    const float from = cuda::rescale_from(top), keep = expf(m - from);
    m = top;
    l *= keep;
#pragma unroll
    for (int c = 0; c < dim; ++c) o[c] *= choices.move_o ? keep : 1;
#pragma unroll
    for (int j = 0; j < tile_keys; ++j) {
      const float p = expf(s[j] - from);
      l += p;
#pragma unroll
      for (int c = 0; c < dim; ++c) o[c] += p * v_tile[j][c];
    }
  }
  if (i >= a.seq) return;
#pragma unroll
  for (int c = 0; c < dim; ++c) a.out[row * dim + c] = o[c] / l;
  a.lse[row] = m + logf(l);
}
}  // namespace

void blockwise_attention(const DeviceArrays& problem, const Choices& choices, cuda::StreamHandle stream) {
  const auto tiles = static_cast<unsigned>(cuda::blocks_of(problem.seq, tile_queries));
  cuda::launch(attend, {dim3(tiles, static_cast<unsigned>(problem.heads)), dim3(tile_queries)}, stream,
               problem, choices);
}

}  // namespace ring_attention::lesson_03
