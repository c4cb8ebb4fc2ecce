// The part of the CUDA runtime that src/ring_attention/cuda uses, on the CPU. Device memory is host memory, and new
// memory is NaN. Every call is complete when it returns; streams have no effect, and an event is a time.
//
// EMULATED_BLOCKS_PER_SECOND makes the GPU slow: a wait for kernels takes as long as if this number of blocks ran per
// second, one after the other. EMULATED_DEVICES sets the GPUs that the process sees, like CUDA_VISIBLE_DEVICES: "01"
// are the first two of the machine. The default is "0".

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "emulator/machine.hpp"

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The time when all kernels that were launched until now are done.
double time_of_end() {
  static const char* const rate = std::getenv("EMULATED_BLOCKS_PER_SECOND");
  if (rate == nullptr) return now();
  const std::lock_guard lock(ring_attention::emulator::in_use());
  static std::uint64_t counted = 0;
  static double end = 0;
  const std::uint64_t begun = ring_attention::emulator::blocks_begun();
  end = std::max(end, now()) + static_cast<double>(begun - std::exchange(counted, begun)) / std::atof(rate);
  return end;
}

cudaError_t wait_until(double time) {
  if (const double left = time - now(); left > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(left));
  return cudaSuccess;
}

// The GPUs that this process sees, one digit each.
std::string_view visible_devices() {
  static const char* const devices = std::getenv("EMULATED_DEVICES");
  return devices == nullptr ? "0" : devices;
}
thread_local int current_device = 0;

cudaError_t allocate(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xff, bytes);
  return cudaSuccess;
}

}  // namespace

struct CUstream_st {
  int unused;
};
struct CUevent_st {
  double happens;
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
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  switch (what) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = 132; return cudaSuccess;
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
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated runtime"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaFree(void* memory) {
  wait_until(time_of_end());
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) { return allocate(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(memory, value, bytes);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st{};
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return stream == cudaStreamLegacy ? cudaSuccess : wait_until(time_of_end());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->happens = time_of_end();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return now() < event->happens ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return wait_until(event->happens); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = static_cast<float>(1e3 * (to->happens - from->happens));
  return cudaSuccess;
}

}  // extern "C"
