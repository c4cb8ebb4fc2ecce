/// \file
/// `Tensor`: a View that owns its memory, of the host or of a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "ring_attention/core/view.hpp"

namespace ring_attention {

/// A kind of memory. An allocator must outlive its arrays.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// The memory is filled with zeros.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) const = 0;
  virtual void free(void* memory, std::size_t bytes) const noexcept = 0;
};

/// What tensors of one thread hold in the memory of the host; allocation.hpp reads it.
struct HostBytes {
  Index current = 0, peak = 0, allocations = 0;
};
[[nodiscard]] HostBytes& host_bytes();

/// Memory of the host, aligned to 64 bytes.
[[nodiscard]] const Allocator& host_allocator();

/// Owns a contiguous `[batch, heads, seq, dim]` array. It can be moved; only `clone()` copies it. Elements start as zero.
///
/// The array is in the memory of the host unless the constructor names another allocator. Host code must not read or
/// write the elements of an array in the memory of a GPU.
template <class T>
class Tensor {
  static_assert(std::is_trivially_copyable_v<T>, "elements travel as bytes");

 public:
  Tensor() = default;
  explicit Tensor(const Shape& shape, const Allocator& allocator = host_allocator())
      : shape_(shape), allocator_(&allocator) {
    if (!fits(shape)) throw std::bad_alloc();
    data_ = static_cast<T*>(allocator.allocate(bytes()));
  }
  Tensor(const Shape& shape, T value) : Tensor(shape) { fill(value); }

  Tensor(Tensor&& other) noexcept
      : shape_(std::exchange(other.shape_, Shape{})),
        data_(std::exchange(other.data_, nullptr)),
        allocator_(other.allocator_) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(shape_, other.shape_);
    std::swap(data_, other.data_);
    std::swap(allocator_, other.allocator_);
    return *this;
  }
  ~Tensor() {
    if (data_ != nullptr) allocator_->free(data_, bytes());
  }

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] Index size() const { return shape_.size(); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(T); }
  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }

  [[nodiscard]] View<T> view() { return {data_, shape_}; }
  [[nodiscard]] View<const T> view() const { return {data_, shape_}; }
  operator View<T>() { return view(); }              // NOLINT: a tensor is a view with an owner
  operator View<const T>() const { return view(); }  // NOLINT

  void fill(T value) { std::fill_n(data_, static_cast<std::size_t>(size()), value); }
  [[nodiscard]] Tensor clone() const {
    Tensor copy(shape_);
    std::copy_n(data_, static_cast<std::size_t>(size()), copy.data_);
    return copy;
  }

 private:
  Shape shape_{};
  T* data_ = nullptr;
  const Allocator* allocator_ = nullptr;
};

/// Conversion element by element, `float` to `double` and back.
template <class To, class From>
[[nodiscard]] Tensor<To> converted(View<From> from) {
  Tensor<To> to(from.shape());
  std::transform(from.data(), from.data() + from.size(), to.data(),
                 [](From x) { return static_cast<To>(x); });
  return to;
}
template <class To, class From>
[[nodiscard]] Tensor<To> converted(const Tensor<From>& from) {
  return converted<To>(from.view());
}

}  // namespace ring_attention
