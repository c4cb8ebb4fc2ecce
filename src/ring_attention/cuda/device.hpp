/// \file
/// The GPUs of this machine: their number, their properties, and the one that this thread uses.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// The lowest compute capability that the kernels are compiled for: Ampere.
constexpr int oldest_compute_capability = 80;

/// Why no GPU can be used: the driver or the GPUs are missing or too old. Empty if some GPU can be used. Works on a
/// machine without a driver. \throws Error if CUDA fails for another reason: a GPU may exist then
[[nodiscard]] std::string why_no_device();

/// CUDA's numbers of the GPUs that this process sees, without those that are too old; none if why_no_device() is not empty.
[[nodiscard]] std::vector<int> usable_devices();

/// The properties of a GPU that kernels depend on.
[[nodiscard]] DeviceTraits traits_of(int device);

/// The name of a GPU, for example `NVIDIA H200`.
[[nodiscard]] std::string name_of(int device);

/// The UUID of a GPU. It is the same in every process, although processes may number the GPUs differently.
using DeviceId = std::array<char, 16>;
[[nodiscard]] DeviceId id_of(int device);

/// Sets and gets the GPU that this thread uses, by CUDA's number. At first it is GPU 0, too old or not.
void use_device(int device);
[[nodiscard]] int current_device();

/// While it lives, this thread uses another GPU.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : before_(current_device()) { use_device(device); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

 private:
  int before_;
};

/// The GPU in whose memory this address is; -1 for the memory of the host.
[[nodiscard]] int device_of(const void* address);

/// Free bytes of the current GPU. Other processes may also allocate them.
[[nodiscard]] Index free_bytes();

}  // namespace ring_attention::cuda
