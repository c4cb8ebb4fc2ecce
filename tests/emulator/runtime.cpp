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
  cudaError_t allocate(void** memory, std::size_t bytes) {
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    std::memset(*memory, 0xff, bytes);
    const std::lock_guard lock(mutex_);
    bytes_of_[static_cast<std::byte*>(*memory)] = bytes;
    return cudaSuccess;
  }
  void free(void* memory) {
    {
      const std::lock_guard lock(mutex_);
      bytes_of_.erase(static_cast<std::byte*>(memory));
    }
    std::free(memory);
  }
  [[nodiscard]] bool contain(const void* memory) const {
    const auto* const byte = static_cast<const std::byte*>(memory);
    const std::lock_guard lock(mutex_);
    auto after = bytes_of_.upper_bound(byte);
    return after != bytes_of_.begin() && byte < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::size_t> bytes_of_;
};
Allocations& allocations() {
  static Allocations& all = *new Allocations;
  return all;
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

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocations().allocate(memory, bytes); }
cudaError_t cudaFree(void* memory) {
  wait_for_all();
  allocations().free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return allocations().allocate(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return allocations().allocate(memory, bytes);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  enqueue_now(stream, [memory] { allocations().free(memory); });
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
