/// \file
/// `Tiling`: tiles of tokens at fixed positions of a sequence, so that a tile is the same tokens on any number of ranks.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ring_attention/attention/mask.hpp"

namespace ring_attention {

/// Cuts a sequence at every multiple of `size`. Where documents are packed, the tiles start again at each of them: a
/// document then has the tiles that it has by itself.
class Tiling {
 public:
  static constexpr Index default_size = 256, largest_size = Index{1} << 20;

  /// \param offset  for queries: that of the mask, with which documents know their positions
  /// \throws InputError when size < 1
  explicit Tiling(Index size = default_size, std::shared_ptr<const Documents> documents = nullptr,
                  Index offset = 0);

  [[nodiscard]] Index size() const { return size_; }
  /// The tile of a position: from 0 on, and to behind the tokens that exist.
  [[nodiscard]] Interval of(Index position) const;
  /// Where each tile of the tokens 0 .. seq - 1 begins, and seq.
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
/// \throws InputError, which names the position, when a range of it does not begin with a tile
[[nodiscard]] std::vector<TokenTile> tiles_of(const TokenRanges& shard, const Tiling& tiling);

}  // namespace ring_attention
