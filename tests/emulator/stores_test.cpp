// Products and copies of the asynchronous proxy do not see a store without a fence.proxy.async of the same thread.

#include <gtest/gtest.h>

#include <cmath>

#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx_hopper.cuh"

namespace ring_attention::cuda {
namespace {

enum class Fence { none, of_one_thread, of_all };

__device__ void call(Fence fence) {
  if (fence == Fence::of_all || (fence == Fence::of_one_thread && threadIdx.x == 0)) fence_proxy_async();
}

// Each thread's sum of its results of a product of ones: 64.
__global__ void multiplies_ones(Fence fence, float* sum) {
  auto* const ones = dynamic_shared<__half>();
  for (unsigned i = threadIdx.x; i < 72 * 64; i += 128) ones[i] = __float2half(1.0F);
  call(fence);
  __syncthreads();
  float d[4] = {};
  const unsigned start = shared_address(ones);
  wgmma_m64nNk16<__half, 0, 0>(d, matrix_descriptor(start, 16), matrix_descriptor(start + 64 * 128, 16),
                               false);
  wgmma_commit();
  wgmma_wait<0>();
  sum[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

// Adds 1 to four numbers.
__global__ void adds_ones(Fence fence, float* to) {
  auto* const ones = dynamic_shared<float>();
  if (threadIdx.x < 4) ones[threadIdx.x] = 1;
  call(fence);
  __syncthreads();
  if (threadIdx.x > 0) return;
  bulk_add(to, shared_address(ones), 16);
  bulk_add_wait_read();
}

// The same after a copy has overwritten what the thread stored.
__global__ void adds_copied(const float* from, float* to) {
  auto* const numbers = dynamic_shared<float>();
  const unsigned start = shared_address(numbers), barrier = start + 16;
  for (int i = 0; i < 4; ++i) numbers[i] = -1;
  mbarrier_init(barrier, 1);
  mbarrier_arrive_expect_tx(barrier, 16);
  cp_async_bulk(start, from, 16, barrier);
  mbarrier_wait(barrier, 0);
  bulk_add(to, start, 16);
  bulk_add_wait_read();
}

template <class Kernel, class... Arguments>
void run(Kernel kernel, const LaunchConfig& grid, const Arguments&... arguments) {
  launch(kernel, grid, nullptr, arguments...);
  check(cudaStreamSynchronize(nullptr));
}

TEST(Stores, AreSeenByAProductAfterTheFence) {
  for (const Fence fence : {Fence::none, Fence::of_one_thread, Fence::of_all}) {
    std::vector<float> sums(128, -1);
    run(multiplies_ones, {dim3(1), dim3(128), 72 * 128}, fence, sums.data());
    for (const float sum : sums) {
      if (fence == Fence::of_all)
        EXPECT_EQ(sum, 64);
      else
        EXPECT_TRUE(std::isnan(sum));
    }
  }
}

TEST(Stores, AreSeenByACopyAfterTheFence) {
  for (const Fence fence : {Fence::none, Fence::of_all}) {
    alignas(16) float to[4] = {};
    run(adds_ones, {dim3(1), dim3(32), 16}, fence, to);
    for (const float x : to) EXPECT_TRUE(fence == Fence::of_all ? x == 1 : std::isnan(x)) << x;
  }
}

TEST(Stores, AreForgottenWhereACopyOverwritesThem) {
  alignas(16) const float from[4] = {1, 2, 3, 4};
  alignas(16) float to[4] = {};
  run(adds_copied, {dim3(1), dim3(1), 32}, from, to);
  EXPECT_TRUE(std::ranges::equal(from, to));
}

}  // namespace
}  // namespace ring_attention::cuda
