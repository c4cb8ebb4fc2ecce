// The part of the CUDA runtime that src/ring_attention/cuda uses, on the CPU. Device memory is host memory, and new
// memory is NaN. Streams are those of streams.hpp. Which call waits for what follows CUDA's documentation ("API
// synchronization behavior"): where the documentation leaves it open, the call does not wait.
//
// EMULATED_DEVICES sets the GPUs that the process sees, like CUDA_VISIBLE_DEVICES: "01" are the first two of the machine.
// The default is "0". A letter is a GPU that is too old: "a0" are one of those and the first one.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/streams.hpp"

using namespace ring_attention::emulator;  // NOLINT: this file is a part of it

namespace {

// The GPUs that this process sees, one character each.
std::string_view visible_devices() {
  static const char* const devices = std::getenv("EMULATED_DEVICES");
  return devices == nullptr ? "0" : devices;
}
thread_local int current_device = 0;

// What was allocated by CUDA: device memory and pinned memory. Other memory is pageable.
class Allocations {
 public:
  cudaError_t allocate(void** memory, std::size_t bytes, cudaMemoryType type, bool pooled = false) {
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xff, bytes);
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(*memory)] = {bytes, type, current_device, pooled};
    return cudaSuccess;
  }
  void free(void* memory) {
    {
      const std::lock_guard lock(mutex_);
      blocks_.erase(static_cast<std::byte*>(memory));
    }
    std::free(memory);
  }
  struct Block {
    std::size_t bytes;
    cudaMemoryType type;
    int device;
    bool pooled;  // of cudaMallocAsync
  };
  // The block of this address; none of pageable memory.
  [[nodiscard]] std::optional<Block> find(const void* memory) const {
    const auto* const byte = static_cast<const std::byte*>(memory);
    const std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(byte);
    if (after == blocks_.begin() || byte >= std::prev(after)->first + std::prev(after)->second.bytes)
      return {};
    return std::prev(after)->second;
  }
  [[nodiscard]] bool contain(const void* memory) const { return find(memory).has_value(); }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, Block> blocks_;
};
Allocations& allocations() {
  static Allocations& all = *new Allocations;
  return all;
}

thread_local std::size_t allocations_of_thread = 0;

cudaError_t allocate(void** memory, std::size_t bytes, cudaMemoryType type = cudaMemoryTypeDevice) {
  ++allocations_of_thread;
  return allocations().allocate(memory, bytes, type);
}

void enqueue_now(cudaStream_t stream, std::function<void()> work) {
  enqueue(stream, [work = std::move(work)] {
    work();
    return State::done;
  });
}

// The first error of a kernel, at the first call that waits after it.
thread_local std::string text_of_error;
cudaError_t result() {
  std::string text = take_error();
  if (text.empty()) return cudaSuccess;
  text_of_error = std::move(text);
  return cudaErrorLaunchFailure;
}

}  // namespace

// A pool keeps what is freed, for the next allocation of that size on that stream.
struct CUmemPoolHandle_st {
  std::multimap<std::pair<cudaStream_t, std::size_t>, void*> freed;
};

namespace {

struct Pools {
  std::mutex mutex;
  std::map<void*, std::pair<cudaMemPool_t, std::size_t>> blocks;  // of all pools
};
Pools& pools() {
  static Pools& all = *new Pools;
  return all;
}

}  // namespace

namespace ring_attention::emulator {

std::size_t allocations_made() { return allocations_of_thread; }

}  // namespace ring_attention::emulator

struct CUevent_st {
  SharedPoint point;  // none before the first record
};

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(visible_devices().size());
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
// The attributes of an H200, as far as the library queries them.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int device) {
  const char name = visible_devices().at(static_cast<std::size_t>(device));
  switch (what) {
    case cudaDevAttrComputeCapabilityMajor: *value = name > '9' ? 7 : 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = static_cast<int>(options().multiprocessors);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::strcpy(properties->name, "the emulator");
  properties->uuid.bytes[0] = visible_devices().at(static_cast<std::size_t>(device));
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = std::size_t{1} << 33U;
  *free = *total;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorLaunchFailure ? text_of_error.c_str() : "an error of the emulated runtime";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaDeviceSynchronize() {
  wait_for_all();
  return result();
}
// Does not wait for memory of cudaMallocAsync: that is over at once.
cudaError_t cudaFree(void* memory) {
  const auto block = allocations().find(memory);
  if (block && block->pooled)
    std::memset(memory, 0xff, block->bytes);
  else
    wait_for_all();
  allocations().free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return allocate(memory, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return allocations().allocate(memory, bytes, cudaMemoryTypeDevice, true);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const std::lock_guard lock(pools().mutex);
  const auto block = pools().blocks.find(memory);
  if (block == pools().blocks.end()) {
    enqueue_now(stream, [memory] { allocations().free(memory); });
    return cudaSuccess;
  }
  const auto [pool, bytes] = block->second;
  enqueue_now(stream, [memory, bytes] { std::memset(memory, 0xff, bytes); });
  pool->freed.insert({{stream, bytes}, memory});
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = new CUmemPoolHandle_st{};
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* value) {
  const std::lock_guard lock(pools().mutex);
  std::uint64_t bytes = 0;
  if (what == cudaMemPoolAttrReservedMemCurrent)
    for (const auto& [key, memory] : pool->freed) bytes += key.second;
  std::memcpy(value, &bytes, sizeof bytes);  // that used is not counted, in either
  return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  const std::lock_guard lock(pools().mutex);
  const auto kept = pool->freed.find({stream, bytes});
  if (kept == pool->freed.end()) {
    const cudaError_t code = allocate(memory, bytes);
    if (code == cudaSuccess) pools().blocks[*memory] = {pool, bytes};
    return code;
  }
  *memory = kept->second;
  pool->freed.erase(kept);
  return cudaSuccess;
}
// What is freed goes back to the driver when its stream has done its work. What is not stays.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  const std::lock_guard lock(pools().mutex);
  for (const auto& [key, memory] : pool->freed) {
    pools().blocks.erase(memory);
    enqueue_now(key.first, [memory] { allocations().free(memory); });
  }
  pool->freed.clear();
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  *attributes = {};
  const auto block = allocations().find(memory);
  attributes->type = block ? block->type : cudaMemoryTypeUnregistered;
  attributes->device = block ? block->device : -2;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  return cudaMemsetAsync(memory, value, bytes, cudaStreamLegacy);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  enqueue_now(stream, [=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
// From pageable memory: the bytes are read by this call, and arrive later. To pageable memory: the call waits.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (allocations().contain(from)) {
    enqueue_now(stream, [=] { std::memmove(to, from, bytes); });
  } else {
    const auto* const first = static_cast<const std::byte*>(from);
    enqueue_now(stream, [to, staged = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
  }
  if (allocations().contain(to)) return cudaSuccess;
  return cudaStreamSynchronize(stream);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;  // others are not emulated
  *stream = create_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  destroy_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  wait_for(end_of(stream));
  return result();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->point != nullptr)
    enqueue(stream, [point = event->point] { return point->done ? State::done : State::waiting; });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->point = enqueue(stream, [] { return State::done; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->point != nullptr && !is_done(event->point)) return cudaErrorNotReady;
  return result();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->point != nullptr) wait_for(event->point);
  return result();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (from->point == nullptr || to->point == nullptr) return cudaErrorInvalidResourceHandle;
  if (!is_done(from->point) || !is_done(to->point)) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(1e3 * (to->point->when - from->point->when));
  return cudaSuccess;
}

}  // extern "C"
