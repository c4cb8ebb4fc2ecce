/// \file
/// `Index`, and positions: `TokenRange`, the positions of the tokens of a shard in the whole sequence; `Interval`, adjacent
/// positions. GPU kernels include this file, so it includes little.
#pragma once

#include <cstdint>

namespace ring_attention {

/// Counts and positions. Signed, so that differences of positions need no care; 64 bits, because a
/// sequence of 10^8 tokens times heads times dim passes 2^31 elements.
using Index = std::int64_t;

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
};

}  // namespace ring_attention
