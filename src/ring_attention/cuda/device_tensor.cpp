#include "ring_attention/cuda/device_tensor.hpp"

#include <cstdint>
#include <limits>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention::cuda {

namespace {

/// Checks the code of an allocation of so many bytes.
void check_allocation(cudaError_t code, std::size_t bytes) {
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw InputError("the GPU has too little memory for an array of " + std::to_string(bytes) + " bytes: " +
                     std::to_string(free_bytes()) + " are free: use more GPUs, or a shorter sequence");
  }
  check(code);
}

class DeviceAllocator final : public Allocator {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes) const override {
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    check_allocation(cudaMalloc(&memory, bytes), bytes);
    check(cudaMemset(memory, 0, bytes));
    check(cudaStreamSynchronize(
        cudaStreamLegacy));  // streams made with cudaStreamNonBlocking do not wait for it
    return memory;
  }
  void free(void* memory, std::size_t) const noexcept override { (void)cudaFree(memory); }
};

class PinnedAllocator final : public Allocator {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes) const override {
    void* memory = nullptr;
    if (bytes > 0) check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
    return memory;
  }
  void free(void* memory, std::size_t) const noexcept override { (void)cudaFreeHost(memory); }
};

}  // namespace

const Allocator& device_allocator() {
  static const Allocator& allocator = *new DeviceAllocator;
  return allocator;
}
const Allocator& pinned_allocator() {
  static const Allocator& allocator = *new PinnedAllocator;
  return allocator;
}

StreamPool::StreamPool(StreamHandle stream) : stream_(stream) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, current_device()};
  check(cudaMemPoolCreate(&pool_, &properties));
  std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all));
}

StreamPool::~StreamPool() { (void)cudaMemPoolDestroy(pool_); }

void* StreamPool::allocate(std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  check_allocation(cudaMallocFromPoolAsync(&memory, bytes, pool_, stream_), bytes);
  check(cudaMemsetAsync(memory, 0, bytes, stream_));
  return memory;
}

void StreamPool::free(void* memory, std::size_t) const noexcept { (void)cudaFreeAsync(memory, stream_); }

Index StreamPool::unused_bytes() const {
  std::uint64_t reserved = 0, used = 0;
  check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  check(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
  return static_cast<Index>(reserved - used);
}

void copy_bytes(void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

template <class T>
void upload(View<T> device, View<const float> host, StreamHandle stream) {
  require(device.shape() == host.shape(), "upload: the arrays must have the same shape");
  DeviceTensor<float> exact;
  if constexpr (type_of<T> == Type::fp32) {
    copy<float>(device.elements(), host.elements(), stream);
  } else {
    exact = DeviceTensor<float>(host.shape());
    copy<float>(exact.view().elements(), host.elements(), stream);
    narrow(exact.data(), device.data(), host.size(), type_of<T>, stream);
  }
  check(cudaStreamSynchronize(stream));
}

template <class T>
Tensor<float> downloaded(View<const T> device, StreamHandle stream) {
  Tensor<float> host(device.shape());
  DeviceTensor<float> exact;
  if constexpr (type_of<T> == Type::fp32) {
    copy<float>(host.view().elements(), device.elements(), stream);
  } else {
    exact = DeviceTensor<float>(device.shape());
    widen(device.data(), exact.data(), device.size(), type_of<T>, stream);
    copy<float>(host.view().elements(), exact.view().elements(), stream);
  }
  check(cudaStreamSynchronize(stream));
  return host;
}

template void upload(View<float>, View<const float>, StreamHandle);
template void upload(View<Bf16>, View<const float>, StreamHandle);
template void upload(View<Fp16>, View<const float>, StreamHandle);
template Tensor<float> downloaded(View<const float>, StreamHandle);
template Tensor<float> downloaded(View<const Bf16>, StreamHandle);
template Tensor<float> downloaded(View<const Fp16>, StreamHandle);

void DeviceMemory::zero_bytes(std::span<std::byte> array) const {
  if (!array.empty()) check(cudaMemsetAsync(array.data(), 0, array.size(), stream_));
}

void DeviceMemory::copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) const {
  cuda::copy_bytes(to.data(), from.data(), from.size(), stream_);
}

void DeviceMemory::add(std::span<float> sum, std::span<const float> term) const {
  cuda::add(sum.data(), term.data(), static_cast<Index>(sum.size()), stream_);
}

void DeviceMemory::add(std::span<double>, std::span<const double>) const {
  throw Error("DeviceMemory: no kernel adds numbers of type double");
}

}  // namespace ring_attention::cuda
