/// \file
/// `MaybeOwned`: the result of a conversion that may have nothing to do.
#pragma once

#include <utility>

#include "ring_attention/core/memory.hpp"

namespace ring_attention {

/// An array of a caller, or an array that it owns.
template <class T>
class MaybeOwned {
 public:
  MaybeOwned() = default;
  MaybeOwned(View<const T> callers) : view_(callers) {}            // NOLINT: implicit on purpose
  MaybeOwned(View<T> callers) : view_(callers) {}                  // NOLINT
  MaybeOwned(const Tensor<T>& callers) : view_(callers.view()) {}  // NOLINT
  MaybeOwned(Tensor<T>&& own) : own_(std::move(own)), view_(own_.data(), own_.shape()) {}  // NOLINT

  [[nodiscard]] View<const T> view() const { return view_; }
  operator View<const T>() const { return view_; }  // NOLINT: stands for the array
  [[nodiscard]] bool is_owned() const { return own_.data() != nullptr; }
  [[nodiscard]] Tensor<T> own() && { return std::move(own_); }

 private:
  Tensor<T> own_;  // empty: the array is the caller's
  View<const T> view_;
};

/// The array itself where it is owned, otherwise a copy in `memory`.
template <class T>
[[nodiscard]] Tensor<T> owned(const Memory& memory, MaybeOwned<T>&& array) {
  if (array.is_owned()) return std::move(array).own();
  Tensor<T> copied = memory.array<T>(array.view().shape());
  memory.copy(copied.view().elements(), array.view().elements());
  return copied;
}

}  // namespace ring_attention
