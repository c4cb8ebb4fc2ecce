#include "ring_attention/cuda/device.hpp"

#include <algorithm>

#include "ring_attention/cuda/error.hpp"

namespace ring_attention::cuda {
namespace {

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, what, device));
  return value;
}

int capability(int device) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

// The GPUs among 0 .. count - 1 that the kernels support.
std::vector<int> usable_of(int count) {
  std::vector<int> usable;
  for (int device = 0; device < count; ++device)
    if (capability(device) >= oldest_compute_capability) usable.push_back(device);
  return usable;
}

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  return properties;
}

}  // namespace

std::string why_no_device() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorInsufficientDriver) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    return driver == 0 ? "this machine has no NVIDIA driver"
                       : "the NVIDIA driver is too old for CUDA " + std::to_string(CUDART_VERSION / 1000);
  }
  if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0)) return "this machine has no GPU";
  check(code);
  if (!usable_of(count).empty()) return "";
  const int has = capability(0);
  return "GPU 0, " + name_of(0) + ", is too old: compute capability " + std::to_string(has / 10) + "." +
         std::to_string(has % 10) + ", and 8.0 is the oldest that works";
}

std::vector<int> usable_devices() {
  if (!why_no_device().empty()) return {};
  int count = 0;
  check(cudaGetDeviceCount(&count));
  return usable_of(count);
}

DeviceTraits traits_of(int device) {
  return {capability(device), attribute(cudaDevAttrMultiProcessorCount, device),
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device)};
}

std::string name_of(int device) { return properties_of(device).name; }

DeviceId id_of(int device) {
  const cudaDeviceProp properties = properties_of(device);
  DeviceId id{};
  std::ranges::copy(properties.uuid.bytes, id.begin());
  return id;
}

void use_device(int device) { check(cudaSetDevice(device)); }

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device));
  return device;
}

CurrentDevice::~CurrentDevice() {
  (void)cudaSetDevice(before_);  // an error of earlier work is not thrown here
}

int device_of(const void* address) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, address));
  const bool on_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  return on_device ? attributes.device : -1;
}

Index free_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total));
  return static_cast<Index>(free);
}

}  // namespace ring_attention::cuda
