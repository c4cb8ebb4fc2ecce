// Exercise 11d: the producer and the consumer of the warp-specialized kernel.
//
// One warp copies tiles of V into two buffers, the stages; two warps sum the rows of each tile. Tile n goes to stage
// n % 2. Each stage has two mbarriers, and uses them again for every second tile:
//
//      full    ends a phase when the producer has arrived and the bytes that it expects are there
//      empty   ends a phase when all 64 threads of the consumer have arrived: they have read the tile
//
//      producer    V0  V1  . waits for empty .  V2        V3
//      consumer        V0                 V1         V2        V3
//
// mbarrier_wait(barrier, parity) waits while the phase in progress has this parity. The first phase has parity 0, so
// during it a wait for parity 1 returns at once. A thread that comes a whole phase late waits for the wrong one.
#include "exercises.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx_hopper.cuh"
#include "swizzled.cuh"

namespace ring_attention::lesson_11 {
namespace {

constexpr int stages = 2, consumers = dim, tile_bytes = 2 * tile * dim;

struct Memory {
  unsigned start = cuda::shared_address(cuda::dynamic_shared<char>());

  [[nodiscard]] __device__ unsigned v(int stage) const {
    return start + static_cast<unsigned>(stage * tile_bytes);
  }
  [[nodiscard]] __device__ unsigned full(int stage) const {
    return v(stages) + static_cast<unsigned>(8 * stage);
  }
  [[nodiscard]] __device__ unsigned empty(int stage) const { return full(stages + stage); }
  [[nodiscard]] __device__ float sum_of_column(int stage, int column) const {
    float sum = 0;
    for (int row = 0; row < tile; ++row)
      sum += element(cuda::dynamic_shared<__nv_bfloat16>() + stage * tile * dim, row, column);
    return sum;
  }
};

__device__ void produce(const Memory& shared, const Sums& a, const cuda::TensorMap& v) {  // one thread
  for (int n = 0; n < a.tiles; ++n) {
    const int stage = n % stages, round = n / stages;  // of this stage
    cuda::mbarrier_wait(shared.empty(stage), static_cast<unsigned>(1 - round % 2));
    cuda::mbarrier_arrive_expect_tx(shared.full(stage), tile_bytes);
    cuda::tma_load_3d(shared.v(stage), v, 0, n * tile, 0, shared.full(stage));
  }
}

__device__ void consume(const Memory& shared, const Sums& a, int column) {  // 64 threads
  for (int n = 0; n < a.tiles; ++n) {
    const int stage = n % stages, round = n / stages;
    float sum = 0;
    cuda::mbarrier_wait(shared.full(stage), static_cast<unsigned>(round % 2));
    sum = shared.sum_of_column(stage, column);
    cuda::mbarrier_arrive(shared.empty(stage));
    a.sums[n * dim + column] = sum;
  }
}

__global__ void __launch_bounds__(consumers + 32)
    add_rows(Sums a, const __grid_constant__ cuda::TensorMap v) {
  const Memory shared;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      cuda::mbarrier_init(shared.full(stage), 1);
      cuda::mbarrier_init(shared.empty(stage), consumers);
    }
    cuda::mbarrier_init_fence();
  }
  __syncthreads();
  if (thread < consumers)
    consume(shared, a, thread);
  else if (thread == consumers)
    produce(shared, a, v);
}

}  // namespace

void producer_and_consumer(const Sums& problem, cuda::StreamHandle stream) {
  const auto v = cuda::make_tensor_map(problem.v, cuda::Type::bf16, dim, problem.tiles * tile, 1, tile);
  cuda::launch(add_rows, {1, consumers + 32, stages * (tile_bytes + 16)}, stream, problem, v);
}

}  // namespace ring_attention::lesson_11
