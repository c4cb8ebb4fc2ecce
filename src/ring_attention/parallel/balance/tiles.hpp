/// \file
/// The tiles of a mask: what an attention computes, counted as its kernels skip, by Mask::coverage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// Tokens of a side of the tiles in which balance is counted, whatever tiles the kernels of a host have.
inline constexpr Index balance_tile = 64;

/// The tiles of `side` queries and `side` keys, each cut from the ranges' first tokens on, that hold a pair which the
/// mask may leave: those that are not Coverage::none.
[[nodiscard]] Index visible_tiles(const Mask& mask, const TokenRange& queries, const TokenRange& keys,
                                  Index side = balance_tile);
/// Counts them for all ranges of two shards.
[[nodiscard]] Index visible_tiles(const Mask& mask, const TokenRanges& queries, const TokenRanges& keys,
                                  Index side = balance_tile);

/// A sequence in chunks, and the visible tiles of each pair of them. Memory: 4 bytes a pair.
class ChunkTiles {
 public:
  /// \param cuts  where each chunk begins, ascending from 0, and then the length of the sequence
  ChunkTiles(const Mask& mask, std::vector<Index> cuts, Index side = balance_tile);
  /// Sums the tiles of groups of neighbouring chunks.
  /// \param firsts  the first chunk of each group, ascending from 0, and then the number of chunks
  ChunkTiles(const ChunkTiles& chunks, const std::vector<Index>& firsts);

  /// The number of chunks.
  [[nodiscard]] Index size() const { return std::ssize(cuts_) - 1; }
  [[nodiscard]] TokenRange tokens(Index chunk) const { return range({chunk, chunk + 1}); }
  /// The tiles of each chunk of keys, for a chunk of queries.
  [[nodiscard]] std::span<const std::int32_t> row(Index queries) const {
    return std::span(tiles_).subspan(static_cast<std::size_t>(queries * size()),
                                     static_cast<std::size_t>(size()));
  }
  [[nodiscard]] Index at(Index queries, Index keys) const {
    return row(queries)[static_cast<std::size_t>(keys)];
  }

 private:
  [[nodiscard]] TokenRange range(const Interval& chunks) const;
  void count(const Mask& mask, const Interval& queries, const Interval& keys, Index side);

  std::vector<Index> cuts_;
  std::vector<std::int32_t> tiles_;
};

}  // namespace ring_attention
