/// \file
/// The GPUs of this machine: is there one, what can it do, which one is mine.
#pragma once

#include <array>
#include <string>

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// The oldest compute capability that the kernels are compiled for: Ampere.
constexpr int oldest_compute_capability = 80;

/// Why no GPU can be used, in a few words: no driver or one that is too old, no GPU or one that is too old. Empty when
/// all can be. Works on a machine that has no driver. \throws Error when CUDA fails for another reason: then there may
/// be a GPU
[[nodiscard]] std::string why_no_device();

/// GPUs that this process sees; 0 where why_no_device() says why.
[[nodiscard]] int device_count();

/// What kernels need to know about a GPU.
[[nodiscard]] DeviceTraits traits_of(int device);

/// `NVIDIA H200`.
[[nodiscard]] std::string name_of(int device);

/// A GPU's UUID: the same for every process that sees it, under whatever number.
using DeviceId = std::array<char, 16>;
[[nodiscard]] DeviceId id_of(int device);

/// The GPU that this thread uses from now on, and the one it uses.
void use_device(int device);
[[nodiscard]] int current_device();

/// Bytes that can still be had on the current GPU. Others may use it, too.
[[nodiscard]] Index free_bytes();

}  // namespace ring_attention::cuda
