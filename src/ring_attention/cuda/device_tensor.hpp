/// \file
/// Arrays in the memory of a GPU, and pinned buffers in the memory of the host.
#pragma once

#include <cstddef>
#include <span>

#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// IEEE half precision, for storage only. Kernels do the conversions.
struct Fp16 {
  std::uint16_t bits = 0;
};

/// The Type of a C++ type.
template <class T>
constexpr Type type_of = Type::fp32;
template <>
inline constexpr Type type_of<Bf16> = Type::bf16;
template <>
inline constexpr Type type_of<Fp16> = Type::fp16;

/// Memory of the current GPU, aligned to 256 bytes. \throws InputError with the number of free bytes if they are too few
struct DeviceAllocator {
  /// Zeros.
  static void* allocate(std::size_t bytes);
  static void free(void* memory, std::size_t bytes) noexcept;
};

/// An array in device memory. Elements start as zero. The host must not read through its views.
template <class T>
using DeviceTensor = OwnedArray<T, DeviceAllocator>;

/// Page-locked host memory: the GPU copies from and to it asynchronously.
struct PinnedAllocator {
  static void* allocate(std::size_t bytes);
  static void free(void* memory, std::size_t bytes) noexcept;
};
using PinnedBuffer = OwnedArray<std::byte, PinnedAllocator>;

void copy_bytes(void* to, const void* from, std::size_t bytes, StreamHandle stream);

/// Enqueues a copy between any two memories, host or device. With unpinned host memory the call waits for the copy.
template <class T>
void copy(std::span<T> to, std::span<const T> from, StreamHandle stream) {
  copy_bytes(to.data(), from.data(), from.size_bytes(), stream);
}

/// upload() copies a host array to the device and rounds it to T. downloaded() copies it back exactly. Both wait until
/// the copy is done. T is float, Bf16 or Fp16.
template <class T>
void upload(View<T> device, View<const float> host, StreamHandle stream);
template <class T>
[[nodiscard]] DeviceTensor<T> uploaded(View<const float> host, StreamHandle stream) {
  DeviceTensor<T> device(host.shape());
  upload<T>(device, host, stream);
  return device;
}
template <class T>
[[nodiscard]] Tensor<float> downloaded(View<const T> device, StreamHandle stream);
template <class T>
[[nodiscard]] Tensor<float> downloaded(const DeviceTensor<T>& device, StreamHandle stream) {
  return downloaded<T>(device.view(), stream);
}

/// The memory of a ring's parcels and of Ulysses' arrays: device memory, used in the order of one stream.
struct DeviceMemory {
  template <class T>
  using Array = DeviceTensor<T>;

  StreamHandle stream = nullptr;

  /// Enqueues array = 0.
  void zero(std::span<float> array) const;
  /// Enqueues to = from, of one length.
  template <class T>
  void copy(std::span<T> to, std::span<const T> from) const {
    cuda::copy(to, from, stream);
  }
  /// Enqueues sum += term.
  void add(std::span<float> sum, std::span<const float> term) const;
};

}  // namespace ring_attention::cuda
