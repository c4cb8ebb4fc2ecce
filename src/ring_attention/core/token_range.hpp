/// \file
/// `TokenRange`: the positions of the tokens of a shard in the whole sequence; `Interval`: adjacent positions.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// `count` tokens at the global positions begin, begin + stride, begin + 2 stride, ...
struct TokenRange {
  Index begin = 0;
  Index stride = 1;
  Index count = 0;

  [[nodiscard]] constexpr Index position(Index i) const { return begin + i * stride; }
  /// The position after that of its last token; meaningless when count is 0.
  [[nodiscard]] constexpr Index end() const { return position(count - 1) + 1; }
  /// The number of its tokens before `position`: 0 .. count.
  [[nodiscard]] constexpr Index before(Index position) const {
    const Index distance = position - begin;
    return distance <= 0 ? 0 : std::min(count, (distance + stride - 1) / stride);
  }
  /// `n` tokens of this range from its `i`-th on: a block of it.
  [[nodiscard]] constexpr TokenRange slice(Index i, Index n) const { return {position(i), stride, n}; }

  friend constexpr bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// The positions begin <= position < end.
struct Interval {
  Index begin, end;
};

/// A shard: its tokens lie in memory in the order of the ranges. No range: a rank without tokens.
using TokenRanges = std::vector<TokenRange>;

/// All tokens of a sequence: one range.
[[nodiscard]] inline TokenRanges whole(Index seq) {
  return seq > 0 ? TokenRanges{{0, 1, seq}} : TokenRanges{};
}

[[nodiscard]] inline Index count(const TokenRanges& ranges) {
  Index tokens = 0;
  for (const TokenRange& range : ranges) tokens += range.count;
  return tokens;
}

/// Every position, in memory order.
[[nodiscard]] inline std::vector<Index> positions(const TokenRanges& ranges) {
  std::vector<Index> all;
  all.reserve(static_cast<std::size_t>(count(ranges)));
  for (const TokenRange& range : ranges)
    for (Index i = 0; i < range.count; ++i) all.push_back(range.position(i));
  return all;
}

}  // namespace ring_attention
