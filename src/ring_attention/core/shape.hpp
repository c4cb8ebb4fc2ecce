/// \file
/// `Shape`: the four extents that every array of this project has. `KvShape`: those of K and V together.
#pragma once

#include <string>

#include "ring_attention/core/index.hpp"

namespace ring_attention {

/// Extents of an array `[batch, heads, seq, dim]`, row-major and contiguous.
/// A statistic with one number per row (lse, m, l, delta) has dim = 1.
struct Shape {
  Index batch = 1;
  Index heads = 1;
  Index seq = 0;
  Index dim = 1;

  /// Number of elements (not bytes).
  [[nodiscard]] constexpr Index size() const { return batch * heads * seq * dim; }

  /// This shape with a different number of tokens, as a shard of the array has.
  [[nodiscard]] constexpr Shape with_seq(Index tokens) const { return {batch, heads, tokens, dim}; }

  /// This shape with a different number of columns, as out has where V has another width than Q and K.
  [[nodiscard]] constexpr Shape with_dim(Index columns) const { return {batch, heads, seq, columns}; }

  /// One number per row: the shape of lse, m, l and delta.
  [[nodiscard]] constexpr Shape per_row() const { return {batch, heads, seq, 1}; }

  friend constexpr bool operator==(const Shape&, const Shape&) = default;
};

/// The shape of K, and the columns of V (and so of out), which has K's batch, heads and tokens.
struct KvShape : Shape {
  Index value_dim = 1;

  constexpr KvShape() = default;
  constexpr KvShape(const Shape& both) : KvShape(both, both.dim) {}  // NOLINT: V is like K
  constexpr KvShape(const Shape& k, Index columns_of_v) : Shape(k), value_dim(columns_of_v) {}
  constexpr KvShape(Index of_batch, Index of_heads, Index of_seq, Index of_dim)
      : KvShape(Shape{of_batch, of_heads, of_seq, of_dim}) {}

  [[nodiscard]] constexpr KvShape with_seq(Index tokens) const {
    return {Shape::with_seq(tokens), value_dim};
  }
  /// The shape of V.
  [[nodiscard]] constexpr Shape values() const { return with_dim(value_dim); }
  /// Number of elements of K and V together; size() is K's.
  [[nodiscard]] constexpr Index elements() const { return size() + values().size(); }

  friend constexpr bool operator==(const KvShape&, const KvShape&) = default;
};

/// `[2, 8, 1024, 64]`.
inline std::string to_string(const Shape& shape) {
  return std::string("[") + std::to_string(shape.batch) + ", " + std::to_string(shape.heads) + ", " +
         std::to_string(shape.seq) + ", " + std::to_string(shape.dim) + "]";
}

/// `[2, 8, 1024, 192], [2, 8, 1024, 128]`, or one of them where they are equal.
inline std::string to_string(const KvShape& kv) {
  const std::string k = to_string(static_cast<const Shape&>(kv));
  return kv.value_dim == kv.dim ? k : k + ", " + to_string(kv.values());
}

/// Has an array of this shape at most most_elements? An extent of 0 counts as 1: the others are bounded as well. False for
/// a negative extent.
[[nodiscard]] constexpr bool fits(const Shape& shape) {
  Index left = most_elements;
  for (const Index extent : {shape.batch, shape.heads, shape.seq, shape.dim})
    left = extent < 0 ? 0 : left / (extent > 1 ? extent : 1);
  return left > 0;
}

}  // namespace ring_attention
