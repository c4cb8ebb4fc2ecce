/// \file
/// `View`: a contiguous `[batch, heads, seq, dim]` array, without owning it.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// A pointer and a Shape. Copying a View copies neither data nor ownership.
/// `View<const T>` reads, `View<T>` also writes; the second converts to the first.
template <class T>
class View {
 public:
  View() = default;
  View(T* data, const Shape& shape) : data_(data), shape_(shape) {}

  /// View<T> -> View<const T>.
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_const_v<U>)
  View(const View<U>& other) : data_(other.data()), shape_(other.shape()) {}  // NOLINT: implicit on purpose

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] Index size() const { return shape_.size(); }

  /// All elements, in memory order.
  [[nodiscard]] std::span<T> elements() const { return {data_, static_cast<std::size_t>(size())}; }

  /// The matrix [seq, dim] of one head, in memory order.
  [[nodiscard]] T* head(Index batch, Index head) const {
    return data_ + (batch * shape_.heads + head) * shape_.seq * shape_.dim;
  }

  /// One token of one head: `dim` elements.
  [[nodiscard]] std::span<T> row(Index batch, Index head_index, Index token) const {
    return {head(batch, head_index) + token * shape_.dim, static_cast<std::size_t>(shape_.dim)};
  }

  /// One element of a per-row statistic, or any element.
  [[nodiscard]] T& operator()(Index batch, Index head_index, Index token, Index column = 0) const {
    return head(batch, head_index)[token * shape_.dim + column];
  }

 private:
  T* data_ = nullptr;
  Shape shape_{};
};

/// Copies the tokens first .. first + tokens - 1 of all heads to the tokens from `at` on of an array that differs only in
/// seq.
template <class From, class To>
void copy_tokens(const View<From>& from, Index first, Index tokens, const View<To>& to, Index at) {
  const Shape& all = from.shape();
  for (Index b = 0; b < all.batch; ++b)
    for (Index h = 0; h < all.heads; ++h)
      std::copy_n(from.row(b, h, first).data(), tokens * all.dim, to.row(b, h, at).data());
}

}  // namespace ring_attention
