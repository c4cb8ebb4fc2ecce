// Lesson 07 on a GPU. The same five products; what is new is which thread sums what.
//
//   thread j of a block:   s_ij = scale q_i . k_j    P_ij    dP_ij = dO_i . v_j    dS_ij = P_ij (dP_ij - delta_i)
//                          dV_j += P_ij dO_i         dK_j += scale dS_ij q_i       its own sums, in registers
//                                  |
//                                 dS, a tile of it, to shared memory
//                                  |
//   thread i of a block:   dQ_i += scale sum_j dS_ij k_j       a share of a sum of many blocks: atomicAdd
//
// A block of 64 threads takes 64 keys of one head and walks over the queries that see them.
#include "backward.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"

namespace ring_attention::lesson_07 {
namespace {

// forward: P = softmax(s), row by row; the sum over a row that its derivative needs is dO . O.
__global__ void find_delta(DeviceArrays a) {
  const Index row = static_cast<Index>(blockIdx.x) * tile + threadIdx.x;
  if (row >= static_cast<Index>(a.heads) * a.seq) return;
  float sum = 0;
  for (int c = 0; c < dim; ++c) sum += a.grad_out[row * dim + c] * a.out[row * dim + c];
  a.delta[row] = sum;
}

__global__ void __launch_bounds__(tile) differentiate(DeviceArrays a, Mistakes mistakes) {
  __shared__ float k_tile[tile][dim], q_tile[tile][dim], do_tile[tile][dim], lse[tile], delta[tile];
  __shared__ float ds_tile[tile][tile + 1];  // one more: a column's entries then lie in different banks
  const int thread = static_cast<int>(threadIdx.x), first_key = static_cast<int>(blockIdx.x) * tile;
  const Index head = static_cast<Index>(blockIdx.y) * a.seq;
  const bool real = first_key + thread < a.seq;
  float v[dim], dk[dim], dv[dim];
#pragma unroll
  for (int c = 0; c < dim; ++c) {
    const Index at = (head + first_key + thread) * dim + c;
    k_tile[thread][c] = real ? a.k[at] : 0;
    v[c] = real ? a.v[at] : 0;
    dk[c] = dv[c] = 0;
  }
  for (int first_query = first_key; first_query < a.seq;
       first_query += tile) {  // causal: earlier ones see no key here
    const int queries = min(tile, a.seq - first_query);
    // No barrier: since the last one only ds_tile and k_tile were read, which are not written here.
    if (thread < queries) {
      const Index row = head + first_query + thread;
      lse[thread] = a.lse[row];
      delta[thread] = mistakes.no_delta ? 0 : a.delta[row];
      for (int c = 0; c < dim; ++c) {
        q_tile[thread][c] = a.q[row * dim + c];
        do_tile[thread][c] = a.grad_out[row * dim + c];
      }
    }
    __syncthreads();  // both tiles are loaded
    for (int i = 0; i < queries; ++i) {
      float s = 0, dp = 0;  // forward: s = scale q k^T and out = P V
#pragma unroll
      for (int c = 0; c < dim; ++c) {
        s += q_tile[i][c] * k_tile[thread][c];
        dp += do_tile[i][c] * v[c];
      }
      const bool seen = real && first_key + thread <= first_query + i;
      const float p = seen ? expf(a.scale * s - lse[i]) : 0;
      const float ds = p * (dp - delta[i]);
      ds_tile[i][thread] = ds;
#pragma unroll
      for (int c = 0; c < dim; ++c) {
        dv[c] += p * do_tile[i][c];
        dk[c] += (mistakes.missing_scale ? 1 : a.scale) * ds * q_tile[i][c];
      }
    }
    if (!mistakes.no_barrier) __syncthreads();  // all of dS is written: from here on thread i has query i
    for (int c = 0; c < dim && thread < queries; ++c) {
      float sum = 0;
      for (int j = 0; j < tile; ++j) sum += ds_tile[thread][j] * k_tile[j][c];
      atomicAdd(&a.grad_q[(head + first_query + thread) * dim + c], a.scale * sum);
    }
  }
  if (!real) return;
#pragma unroll
  for (int c = 0; c < dim; ++c) {
    const Index at = (head + first_key + thread) * dim + c;
    a.grad_k[at] += dk[c];
    a.grad_v[at] += dv[c];
  }
}
}  // namespace

void backward(const DeviceArrays& problem, const Mistakes& mistakes, cuda::StreamHandle stream) {
  cuda::launch(find_delta, {cuda::blocks_of(Index{problem.heads} * problem.seq, Index{tile}), tile}, stream,
               problem);
  const auto tiles = static_cast<unsigned>(cuda::blocks_of(problem.seq, tile));
  cuda::launch(differentiate, {dim3(tiles, static_cast<unsigned>(problem.heads)), dim3(tile)}, stream,
               problem, mistakes);
}

}  // namespace ring_attention::lesson_07
