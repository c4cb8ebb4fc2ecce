#include "ring_attention/ring/placement.hpp"

#include <algorithm>
#include <array>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/mix.hpp"

namespace ring_attention {
namespace {

/// Joins a range to the one before it if it continues that one: the two chunks of the last zigzag rank.
TokenRanges joined(const TokenRanges& ranges) {
  TokenRanges result;
  for (const TokenRange& range : ranges) {
    if (!result.empty() && result.back().stride == 1 && range.stride == 1 &&
        range.begin == result.back().end())
      result.back().count += range.count;
    else
      result.push_back(range);
  }
  return result;
}

constexpr std::array names{"contiguous", "striped", "zigzag", "balanced"};  // in the order of PlacementKind

/// Does each position from 0 on have one rank? All ranges have stride 1 and a token.
bool covers_each_token_once(const std::vector<TokenRanges>& shards) {
  TokenRanges all;
  for (const TokenRanges& shard : shards) {
    if (!std::ranges::is_sorted(shard, {}, &TokenRange::begin)) return false;
    all.insert(all.end(), shard.begin(), shard.end());
  }
  std::ranges::sort(all, {}, &TokenRange::begin);
  Index due = 0;
  for (const TokenRange& range : all) {
    if (range.begin != due || range.stride != 1 || !within(range.count, 1, largest_position - due))
      return false;
    due = range.end();
  }
  return true;
}

}  // namespace

std::string name(PlacementKind kind) { return names.at(static_cast<std::size_t>(kind)); }

PlacementKind placement_kind_named(const std::string& word) {
  const auto found = std::ranges::find(names, word);
  require(found != names.end(), "no placement is called " + word);
  return static_cast<PlacementKind>(found - names.begin());
}

Placement::Placement(PlacementKind kind, Index seq, int ranks) : kind_(kind), seq_(seq), ranks_(ranks) {
  require(kind != PlacementKind::balanced, "a balanced placement is given as ranges");
  require(within(ranks, 1, largest_count / 2),
          "a placement is over 1 to 2^30 - 1 ranks");  // zigzag: two pieces each
  require(within(seq, 0, largest_position), "a sequence has 0 to 2^53 tokens");
}

Placement::Placement(PlacementKind kind, std::vector<Index> cuts, int ranks)
    : Placement(kind, cuts.empty() ? 0 : cuts.back(), ranks) {
  require(!cuts.empty() && cuts.front() == 0 && std::ranges::is_sorted(cuts),
          "a placement's cuts ascend from 0");
  for (const Index cut : cuts) hash_ = mix(hash_ + static_cast<std::uint64_t>(cut));
  cuts_ = std::make_shared<const std::vector<Index>>(std::move(cuts));
}

Placement::Placement(std::vector<TokenRanges> shards, Index pieces)
    : kind_(PlacementKind::balanced), seq_(0), ranks_(static_cast<int>(shards.size())), pieces_(pieces) {
  require(within(std::ssize(shards), 1, largest_count / 2), "a placement is over 1 to 2^30 - 1 ranks");
  require(covers_each_token_once(shards),
          "a placement's ranges have each token once, and those of a rank ascend");
  for (TokenRanges& shard : shards) {
    shard = joined(shard);
    seq_ += count(shard);
    hash_ = mix(hash_ + shard.size());
    for (const TokenRange& range : shard)  // one ends where the next of any rank begins
      hash_ = mix(hash_ + static_cast<std::uint64_t>(range.begin));
  }
  shards_ = std::make_shared<const std::vector<TokenRanges>>(std::move(shards));
}

TokenRange Placement::tokens_of(const Interval& pieces) const {
  const auto at = [this](Index piece) { return cuts_ ? (*cuts_)[static_cast<std::size_t>(piece)] : piece; };
  return {at(pieces.begin), 1, at(pieces.end) - at(pieces.begin)};
}

TokenRanges Placement::ranges(int rank) const {
  require(rank >= 0 && rank < ranks_, "Placement: no such rank");
  TokenRanges ranges;
  switch (kind_) {
    case PlacementKind::contiguous: ranges.push_back(tokens_of(piece_of(pieces(), rank, ranks_))); break;
    case PlacementKind::striped:
      if (!cuts_) ranges.push_back({rank, ranks_, (seq_ - rank + ranks_ - 1) / ranks_});
      for (Index piece = rank; cuts_ && piece < pieces(); piece += ranks_)
        ranges.push_back(tokens_of({piece, piece + 1}));
      break;
    case PlacementKind::zigzag:
      ranges.push_back(tokens_of(piece_of(pieces(), rank, 2 * ranks_)));
      ranges.push_back(tokens_of(piece_of(pieces(), 2 * ranks_ - 1 - rank, 2 * ranks_)));
      break;
    case PlacementKind::balanced: return (*shards_)[static_cast<std::size_t>(rank)];
  }
  std::erase_if(ranges, [](const TokenRange& range) { return range.count <= 0; });
  return joined(ranges);
}

Index Placement::max_tokens() const {
  Index most = 0;
  for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, tokens(rank));
  return most;
}

TokenRanges part(const TokenRanges& shard, int piece, int pieces) {
  const Interval wanted = piece_of(count(shard), piece, pieces);
  TokenRange left{wanted.begin, 1, wanted.end - wanted.begin};  // still to be found, counted from `range` on
  TokenRanges ranges;
  for (const TokenRange& range : shard) {
    const Index first = std::min(left.begin, range.count);
    const Index taken = std::min(left.count, range.count - first);
    if (taken > 0) ranges.push_back(range.slice(first, taken));
    left = {left.begin - first, 1, left.count - taken};
  }
  return ranges;
}

}  // namespace ring_attention
