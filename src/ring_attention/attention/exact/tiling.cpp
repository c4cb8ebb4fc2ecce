#include "ring_attention/attention/exact/tiling.hpp"

#include <algorithm>
#include <string>

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

Tiling::Tiling(Index size, std::shared_ptr<const Documents> documents, Index offset)
    : size_(size), documents_(std::move(documents)), offset_(documents_ ? offset : 0) {
  if (!within(size, 1, largest_size))
    throw InputError("a tile has 1 to 2^20 tokens, not " + std::to_string(size));
}

Interval Tiling::of(Index position) const {
  const Index at = position + offset_;
  Interval all{0, Mask::unlimited};  // the tokens that are cut together
  if (documents_) {
    const Index document = documents_->of(at), end = documents_->end();
    if (document >= 0)
      all = {documents_->begin(document), documents_->end(document)};
    else
      all = at < 0 ? Interval{at / size_ * size_ - size_, 0} : Interval{end, Mask::unlimited};
  }
  const Index begin = all.begin + (at - all.begin) / size_ * size_;
  return {std::max<Index>(begin - offset_, 0), std::min(begin + size_, all.end) - offset_};
}

std::vector<Index> Tiling::cuts(Index seq) const {
  std::vector<Index> cuts{0};
  while (cuts.back() < seq) cuts.push_back(std::min(of(cuts.back()).end, seq));
  return cuts;
}

std::vector<TokenTile> tiles_of(const TokenRanges& shard, const Tiling& tiling) {
  std::vector<TokenTile> tiles;
  Index first = 0;
  for (const TokenRange& range : shard) {
    for (Index i = 0; i < range.count;) {
      const Index begin = range.position(i);
      const Interval tile = tiling.of(begin);
      if (range.stride != 0 && (tile.begin != begin || (range.stride > 1 && range.count > 1)))
        throw InputError("the same bits: the token at " + std::to_string(begin) +
                         " begins a part of a shard but not a tile of " + std::to_string(tiling.size()) +
                         " tokens: make the placement with the tiling");
      const Index tokens = range.stride == 0 ? range.count : std::min(tile.end - begin, range.count - i);
      tiles.push_back({range.slice(i, tokens), first + i});
      i += tokens;
    }
    first += range.count;
  }
  return tiles;
}

}  // namespace ring_attention
