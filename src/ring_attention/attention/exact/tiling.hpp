/// \file
/// `Tiling`: tiles of tokens at fixed positions of a sequence, so that a tile has the same tokens on any number of ranks.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ring_attention/attention/documents.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// Cuts a sequence at every multiple of `size`. Where documents are packed, the tiles start again at each document, so a
/// document has the same tiles as it would have alone.
class Tiling {
 public:
  static constexpr Index default_size = 256, largest_size = Index{1} << 20;

  /// \param offset  for queries: the mask's, which added to their positions gives positions in the documents
  /// \throws InputError unless size is from 1 to largest_size
  explicit Tiling(Index size = default_size, std::shared_ptr<const Documents> documents = nullptr,
                  Index offset = 0);

  [[nodiscard]] Index size() const { return size_; }
  /// The tile of a position. It begins at 0 or later, and may extend beyond the tokens that exist.
  [[nodiscard]] Interval of(Index position) const;
  /// The position where each tile of the tokens 0 .. seq - 1 begins, and then seq.
  [[nodiscard]] std::vector<Index> cuts(Index seq) const;

 private:
  Index size_;
  std::shared_ptr<const Documents> documents_;
  Index offset_;
};

/// Some tokens of a shard that are one tile, and the index of the first of them in memory.
struct TokenTile {
  TokenRange tokens;
  Index first;
};

/// The tiles of a shard, in the order of its memory.
/// \throws InputError, which names the position, when a range of the shard does not begin with a tile
[[nodiscard]] std::vector<TokenTile> tiles_of(const TokenRanges& shard, const Tiling& tiling);

}  // namespace ring_attention
