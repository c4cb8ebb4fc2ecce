// Exercise 11c: a load by TMA with its mbarrier.
//
// A block of 64 threads computes the scores of one query. K comes in tiles of 64 keys into one buffer; thread j has
// key j of each tile. One thread starts the load of a tile and goes on. The mbarrier `full` ends a phase when one thread has
// arrived and all bytes that it expects are there; the phases are numbered 0, 1, 2, ...
//
//      thread 0      expect, load ─┐                  expect, load ─┐
//      TMA                         └─ 8192 bytes ─● full            └─ 8192 bytes ─● full
//      all threads   wait ........................ compute ......... wait ......... compute
#include "exercises.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx_hopper.cuh"
#include "swizzled.cuh"

namespace ring_attention::lesson_11 {
namespace {

constexpr int tile_bytes =
    2 * tile * dim;  // also of a tile that ends beyond the last key: TMA writes zeros there

__global__ void __launch_bounds__(tile) score(Scores a, const __grid_constant__ cuda::TensorMap k) {
  auto* k_tile = cuda::dynamic_shared<__nv_bfloat16>();  // [tile][dim], swizzled; the mbarrier is behind it
  const unsigned to = cuda::shared_address(k_tile), full = to + tile_bytes;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    cuda::mbarrier_init(full, 1);  // one thread arrives
    cuda::mbarrier_init_fence();
  }
  __syncthreads();
  for (int number = 0; number * tile < a.keys; ++number) {
    const int first = number * tile;  // key
    if (thread == 0) {
      cuda::mbarrier_arrive_expect_tx(full, tile_bytes);
      cuda::tma_load_3d(to, k, 0, first, 0, full);
    }
    cuda::mbarrier_wait(full, static_cast<unsigned>(number % 2));
    float s = 0;
    for (int c = 0; c < dim; ++c) s += __bfloat162float(a.q[c]) * element(k_tile, thread, c);
    if (first + thread < a.keys) a.s[first + thread] = s;
    __syncthreads();
  }
}

}  // namespace

void tma_load(const Scores& problem, cuda::StreamHandle stream) {
  const auto k = cuda::make_tensor_map(problem.k, cuda::Type::bf16, dim, problem.keys, 1, tile);
  cuda::launch(score, {1, tile, tile_bytes + 8}, stream, problem, k);
}

}  // namespace ring_attention::lesson_11
