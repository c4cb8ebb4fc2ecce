/// \file
/// Arrays in the memory of a GPU, and pinned buffers in the memory of the host.
#pragma once

#include <bit>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

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

namespace detail {
/// Memory of the current GPU, filled with zeros. \throws InputError with the number of free bytes if they are too few
void* allocate_on_device(std::size_t bytes);
void free_on_device(void* memory) noexcept;
void* allocate_pinned(std::size_t bytes);
void free_pinned(void* memory) noexcept;
void copy_bytes(void* to, const void* from, std::size_t bytes, StreamHandle stream);
}  // namespace detail

/// Owns a contiguous [batch, heads, seq, dim] array in device memory, aligned to 256 bytes. Movable, not copyable.
/// Elements start as zero. The host must not read through its views.
template <class T>
class DeviceTensor {
 public:
  DeviceTensor() = default;
  explicit DeviceTensor(const Shape& shape) : shape_(shape) {
    data_ = static_cast<T*>(detail::allocate_on_device(bytes()));
  }
  DeviceTensor(DeviceTensor&& other) noexcept
      : shape_(std::exchange(other.shape_, Shape{})), data_(std::exchange(other.data_, nullptr)) {}
  DeviceTensor& operator=(DeviceTensor&& other) noexcept {
    std::swap(shape_, other.shape_);
    std::swap(data_, other.data_);
    return *this;
  }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;
  ~DeviceTensor() { detail::free_on_device(data_); }

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] Index size() const { return shape_.size(); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(T); }
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] View<T> view() { return {data_, shape_}; }
  [[nodiscard]] View<const T> view() const { return {data_, shape_}; }
  operator View<T>() { return view(); }              // NOLINT: a tensor is a view with an owner
  operator View<const T>() const { return view(); }  // NOLINT

 private:
  Shape shape_{};
  T* data_ = nullptr;
};

/// Page-locked host memory: the GPU copies from and to it asynchronously.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(detail::allocate_pinned(bytes))), bytes_(bytes) {}
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { detail::free_pinned(data_); }

  [[nodiscard]] std::span<std::byte> first(std::size_t count) const { return {data_, count}; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// Enqueues a copy between any two memories, host or device. With unpinned host memory the call waits for the copy.
template <class T>
void copy(std::span<T> to, std::span<const T> from, StreamHandle stream) {
  detail::copy_bytes(to.data(), from.data(), from.size_bytes(), stream);
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

/// The memory of a ring's parcels: device memory, used in the order of one stream.
struct DeviceMemory {
  template <class T>
  using Array = DeviceTensor<T>;

  StreamHandle stream = nullptr;

  /// Enqueues array = 0.
  void zero(std::span<float> array) const;
  /// Enqueues sum += term.
  void add(std::span<float> sum, std::span<const float> term) const;
};

}  // namespace ring_attention::cuda
