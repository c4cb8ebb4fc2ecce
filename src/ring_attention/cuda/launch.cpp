#include <cstdint>
#include <map>
#include <mutex>

#include "ring_attention/cuda/launch.cuh"

namespace ring_attention::cuda {

cudaMemPool_t scratch_pool() {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;  // one a device, never destroyed
  int device = 0;
  check(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  cudaMemPool_t& pool = pools[device];
  if (pool == nullptr) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, device};
    check(cudaMemPoolCreate(&pool, &properties));
    std::uint64_t kept_bytes = 512U << 20U;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept_bytes));
  }
  return pool;
}

}  // namespace ring_attention::cuda
