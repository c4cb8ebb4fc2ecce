/// \file
/// `Run`: where the tokens of a shard stand in the whole sequence; `Interval`: a stretch of it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// `count` tokens at the global positions begin, begin + stride, begin + 2 stride, ...
struct Run {
  Index begin = 0;
  Index stride = 1;
  Index count = 0;

  [[nodiscard]] constexpr Index position(Index i) const { return begin + i * stride; }
  [[nodiscard]] constexpr Index first() const { return begin; }
  /// The last position; meaningless when count is 0.
  [[nodiscard]] constexpr Index last() const { return position(count - 1); }
  /// How many of its tokens stand before `position`: 0 .. count.
  [[nodiscard]] constexpr Index before(Index position) const {
    const Index away = position - begin;
    return away <= 0 ? 0 : std::min(count, (away + stride - 1) / stride);
  }
  /// `n` tokens of this run from its `i`-th on: a block of it.
  [[nodiscard]] constexpr Run slice(Index i, Index n) const { return {position(i), stride, n}; }

  friend constexpr bool operator==(const Run&, const Run&) = default;
};

/// The positions first <= position < last.
struct Interval {
  Index first, last;
};

/// A shard: its tokens lie in memory in the order of the runs. No run: a rank without tokens.
using Runs = std::vector<Run>;

/// All tokens of a sequence: one run.
[[nodiscard]] inline Runs whole(Index seq) { return seq > 0 ? Runs{{0, 1, seq}} : Runs{}; }

[[nodiscard]] inline Index count(const Runs& runs) {
  Index tokens = 0;
  for (const Run& run : runs) tokens += run.count;
  return tokens;
}

/// Every position, in memory order.
[[nodiscard]] inline std::vector<Index> positions(const Runs& runs) {
  std::vector<Index> all;
  all.reserve(static_cast<std::size_t>(count(runs)));
  for (const Run& run : runs)
    for (Index i = 0; i < run.count; ++i) all.push_back(run.position(i));
  return all;
}

}  // namespace ring_attention
