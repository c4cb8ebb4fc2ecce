/// \file
/// `Index`, and positions: `TokenRange`, the positions of the tokens of a shard in the whole sequence; `Interval`, adjacent
/// positions. GPU kernels include this file, so it includes little.
#pragma once

#include <cstdint>

namespace ring_attention {

/// Counts and positions. Signed, so that differences of positions need no care; 64 bits, because a
/// sequence of 10^8 tokens times heads times dim passes 2^31 elements.
using Index = std::int64_t;

// The largest numbers that flags, files and arguments may have. Sums, differences and products of a few of them fit an Index,
// so that no other code has to test for overflow.

/// The largest position of a token, and the largest length of a sequence or of a window. Exact in a double.
inline constexpr Index largest_position = Index{1} << 53U;
/// The largest number of ranks, heads, columns, layers and so on. Fits an int.
inline constexpr Index largest_count = (Index{1} << 31U) - 1;
/// The most elements of an array: more than any job can hold.
inline constexpr Index most_elements = Index{1} << 48U;

[[nodiscard]] constexpr bool within(Index number, Index least, Index most) {
  return least <= number && number <= most;
}

/// `count` tokens at the global positions begin, begin + stride, begin + 2 stride, ...
struct TokenRange {
  Index begin = 0;
  Index stride = 1;
  Index count = 0;

  [[nodiscard]] constexpr Index position(Index i) const { return begin + i * stride; }
  /// The position after its last token; meaningless when count is 0.
  [[nodiscard]] constexpr Index end() const { return position(count - 1) + 1; }
  /// The number of its tokens before `position`: 0 .. count.
  [[nodiscard]] constexpr Index before(Index position) const {
    const Index distance = position - begin;
    if (distance <= 0) return 0;
    const Index all = (distance + stride - 1) / stride;
    return all < count ? all : count;
  }
  /// `n` tokens of this range from its `i`-th on: a block of it.
  [[nodiscard]] constexpr TokenRange slice(Index i, Index n) const { return {position(i), stride, n}; }

  friend constexpr bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// The positions begin <= position < end.
struct Interval {
  Index begin, end;

  [[nodiscard]] constexpr bool empty() const { return begin >= end; }
};

}  // namespace ring_attention
