/// \file
/// `TokenRanges`: the tokens of a shard.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/core/index.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// A shard: its tokens lie in memory in the order of the ranges. A rank without tokens has no ranges.
using TokenRanges = std::vector<TokenRange>;

/// All tokens of a sequence: one range.
[[nodiscard]] inline TokenRanges whole(Index seq) {
  return seq > 0 ? TokenRanges{{0, 1, seq}} : TokenRanges{};
}

/// Piece `piece` of `pieces` nearly equal pieces of `elements` things: the first ones have one more.
[[nodiscard]] inline Interval piece_of(Index elements, int piece, int pieces) {
  const Index length = elements / pieces, longer = elements % pieces;
  const Index begin = piece * length + std::min<Index>(piece, longer);
  return {begin, begin + length + (piece < longer ? 1 : 0)};
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
