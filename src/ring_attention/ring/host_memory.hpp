/// \file
/// `HostMemory`: where parcels are, unless a GPU has them.
#pragma once

#include <algorithm>
#include <functional>
#include <span>

#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// The memory of parcels and of Ulysses' arrays, and what happens to them besides sending. This one is host memory, and
/// copies and sums are done at once. cuda::DeviceMemory is the other one: there they are enqueued.
struct HostMemory {
  template <class T>
  using Array = Tensor<T>;  ///< zeros at first

  /// array = 0.
  template <class T>
  void zero(std::span<T> array) const {
    std::ranges::fill(array, T{0});
  }
  /// to = from, of one length.
  template <class T>
  void copy(std::span<T> to, std::span<const T> from) const {
    std::ranges::copy(from, to.begin());
  }
  /// sum += term.
  template <class T>
  void add(std::span<T> sum, std::span<const T> term) const {
    std::ranges::transform(sum, term, sum.begin(), std::plus<>());
  }
};

}  // namespace ring_attention
