/// \file
/// `Memory`: where a ring computes: the memory of the host, or that of a GPU in the order of one stream.
#pragma once

#include <span>

#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// Allocates arrays, and sets, copies and sums them. In the memory of the host that is done when a call returns; on a GPU
/// it is enqueued.
class Memory {
 public:
  virtual ~Memory() = default;

  /// Zeros.
  template <class T>
  [[nodiscard]] Tensor<T> array(const Shape& shape) const {
    return Tensor<T>(shape, allocator());
  }
  /// array = 0.
  template <class T>
  void zero(std::span<T> array) const {
    zero_bytes(std::as_writable_bytes(array));
  }
  /// to = from, of one length.
  template <class T>
  void copy(std::span<T> to, std::span<const T> from) const {
    copy_bytes(std::as_writable_bytes(to), std::as_bytes(from));
  }
  /// sum += term.
  virtual void add(std::span<float> sum, std::span<const float> term) const = 0;
  virtual void add(std::span<double> sum, std::span<const double> term) const = 0;

 private:
  [[nodiscard]] virtual const Allocator& allocator() const = 0;
  virtual void zero_bytes(std::span<std::byte> array) const = 0;
  virtual void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) const = 0;
};

/// The memory of the host.
class HostMemory : public Memory {
 public:
  void add(std::span<float> sum, std::span<const float> term) const override;
  void add(std::span<double> sum, std::span<const double> term) const override;

 private:
  [[nodiscard]] const Allocator& allocator() const override { return host_allocator(); }
  void zero_bytes(std::span<std::byte> array) const override;
  void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) const override;
};
[[nodiscard]] const Memory& host_memory();

}  // namespace ring_attention
