/// \file
/// Arrays in the memory of a GPU, and pinned buffers in the memory of the host.
#pragma once

#include <cstddef>
#include <span>

#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/memory.hpp"
#include "ring_attention/cuda/kernels.hpp"

struct CUmemPoolHandle_st;

namespace ring_attention::cuda {

/// The Type of a C++ type.
template <class T>
constexpr Type type_of = Type::fp32;
template <>
inline constexpr Type type_of<Bf16> = Type::bf16;
template <>
inline constexpr Type type_of<Fp16> = Type::fp16;

/// Memory of the current GPU, aligned to 256 bytes. allocate() throws InputError with the number of free bytes if they are
/// too few.
[[nodiscard]] const Allocator& device_allocator();
/// Page-locked host memory, not zeroed: the GPU copies from and to it asynchronously.
[[nodiscard]] const Allocator& pinned_allocator();

/// Memory of the current GPU that is allocated, zeroed and freed in the order of one stream: the host does not wait. What
/// is freed stays in the pool until it is destroyed, so that a second call with the same shapes allocates nothing.
/// allocate() throws InputError as device_allocator() does.
class StreamPool final : public Allocator {
 public:
  explicit StreamPool(StreamHandle stream);
  StreamPool(const StreamPool&) = delete;
  StreamPool& operator=(const StreamPool&) = delete;
  ~StreamPool() override;

  [[nodiscard]] void* allocate(std::size_t bytes) const override;
  void free(void* memory, std::size_t bytes) const noexcept override;
  /// Bytes that the pool holds and no array uses.
  [[nodiscard]] Index unused_bytes() const;

 private:
  StreamHandle stream_;
  CUmemPoolHandle_st* pool_ = nullptr;
};

/// A Tensor that begins in device memory. The host must not read through its views.
template <class T>
struct DeviceTensor : Tensor<T> {
  DeviceTensor() = default;
  explicit DeviceTensor(const Shape& shape) : Tensor<T>(shape, device_allocator()) {}
};

struct PinnedBuffer : Tensor<std::byte> {
  explicit PinnedBuffer(const Shape& shape) : Tensor(shape, pinned_allocator()) {}
};

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
[[nodiscard]] Tensor<float> downloaded(const Tensor<T>& device, StreamHandle stream) {
  return downloaded<T>(device.view(), stream);
}

/// Device memory, used in the order of one stream.
class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(StreamHandle stream, const Allocator& allocator = device_allocator())
      : stream_(stream), allocator_(allocator) {}

  void add(std::span<float> sum, std::span<const float> term) const override;
  /// \throws Error: no kernel computes in double
  void add(std::span<double> sum, std::span<const double> term) const override;

 private:
  [[nodiscard]] const Allocator& allocator() const override { return allocator_; }
  void zero_bytes(std::span<std::byte> array) const override;
  void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) const override;

  StreamHandle stream_;
  const Allocator& allocator_;
};

}  // namespace ring_attention::cuda
