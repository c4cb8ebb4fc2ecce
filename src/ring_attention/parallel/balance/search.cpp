#include "ring_attention/parallel/balance/search.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "ring_attention/core/mix.hpp"

namespace ring_attention {
namespace {

bool is_earlier(const DealCost& a, const DealCost& b) {
  return std::tie(a.finish, a.squares) < std::tie(b.finish, b.squares);
}
bool is_cheaper(const DealCost& a, const DealCost& b) {
  return std::tie(a.hops, a.ranges, a.finish) < std::tie(b.hops, b.ranges, b.finish);
}
/// Adds the 3 % that a deal may cost more than the best.
Index and_three_percent(Index tiles) { return tiles * 103 / 100; }

Index length(const Interval& pieces) { return pieces.end - pieces.begin; }
void add_run(RankOfChunk& deal, int rank, Index chunks) {
  deal.insert(deal.end(), static_cast<std::size_t>(chunks), rank);
}

RankOfChunk contiguous(Index chunks, int ranks) {
  RankOfChunk deal;
  for (int rank = 0; rank < ranks; ++rank)  // the last ranks have one more
    add_run(deal, rank, length(piece_of(chunks, ranks - 1 - rank, ranks)));
  return deal;
}

RankOfChunk zigzag(Index chunks, int ranks) {
  RankOfChunk deal;
  for (int rank = 0; rank < ranks; ++rank) add_run(deal, rank, length(piece_of(chunks, rank, ranks)) / 2);
  for (int rank = ranks - 1; rank >= 0; --rank) {
    const Index all = length(piece_of(chunks, rank, ranks));
    add_run(deal, rank, all - all / 2);
  }
  return deal;
}

/// One chunk to each rank in turn. \param snake  every other turn goes from the last rank to the first
RankOfChunk in_turns(Index chunks, int ranks, bool snake) {
  RankOfChunk deal;
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    const Index turn = chunk / ranks;
    const int rank = static_cast<int>(chunk - turn * ranks);
    deal.push_back(snake && turn % 2 == 1 ? ranks - 1 - rank : rank);
  }
  return deal;
}

/// A deal and its cost.
struct Found {
  RankOfChunk rank_of;
  DealCost cost;
};

/// The search in chunks of one size.
class Search {
 public:
  /// \param tokens  of a rank: from begin up to end, which is included
  Search(const ChunkTiles& chunks, int ranks, const Interval& tokens, std::uint64_t seed)
      : chunks_(chunks), ranks_(ranks), tokens_(tokens), seed_(seed) {
    Index all = 0;
    for (Index chunk = 0; chunk < chunks.size(); ++chunk)
      for (const std::int32_t tiles : chunks.row(chunk)) all += tiles;
    ideal_ = (all + ranks - 1) / ranks;
    // About as long for each number of ranks: to try a swap takes O(ranks^2).
    const Index side = ranks + 32;
    trials_ = std::min(
        {Index{64} + (Index{1} << 26) / (side * side), Index{20000}, 32 * chunks.size() * chunks.size()});
  }

  /// The known deals in which each rank has the tokens that it should.
  [[nodiscard]] std::vector<Found> known() const {
    std::vector<Found> found;
    for (const RankOfChunk& rank_of : known_deals(chunks_.size(), ranks_)) {
      Deal deal(chunks_, rank_of, ranks_);
      bool even = true;
      for (int rank = 0; rank < ranks_; ++rank) even = even && may_have(deal.tokens(rank));
      if (even) found.push_back({rank_of, deal.cost(true)});
    }
    return found;
  }

  /// Swaps that bring the finish forward.
  [[nodiscard]] Found shortened(const RankOfChunk& start) {
    Deal deal(chunks_, start, ranks_);
    DealCost cost = deal.cost(false);
    for (Index trial = 0; trial < trials_ && cost.finish > ideal_ + ideal_ / 512; ++trial) {
      const Index any = any_chunk(), other = any_chunk();
      const Index one = trial % 2 == 0 ? any : chunk_of(deal, cost.last, any);
      if (!may_swap(deal, one, other)) continue;
      const DealCost swapped = deal.cost_of_swap(one, other, false);
      if (is_earlier(cost, swapped)) continue;
      deal.swap(one, other);
      cost = swapped;
    }
    return {deal.rank_of(), deal.cost(true)};
  }

  /// Swaps that save bytes over the ring, or ranges. \param limit  of finish and busiest
  [[nodiscard]] Found cheapened(const RankOfChunk& start, const DealCost& limit) {
    Deal deal(chunks_, start, ranks_);
    DealCost cost = deal.cost(true);
    for (Index trial = 0; trial < trials_; ++trial) {
      const Index other = any_chunk(), any = any_chunk();
      const Index one = trial % 2 == 0 ? any : behind_a_run(deal, other, any);
      if (!may_swap(deal, one, other)) continue;
      const DealCost swapped = deal.cost_of_swap(one, other, true);
      if (swapped.finish > limit.finish || swapped.busiest > limit.busiest || is_cheaper(cost, swapped))
        continue;
      deal.swap(one, other);
      cost = swapped;
    }
    return {deal.rank_of(), cost};
  }

 private:
  [[nodiscard]] Index any_chunk() {
    return static_cast<Index>(mix(seed_++) % static_cast<std::uint64_t>(chunks_.size()));
  }
  [[nodiscard]] bool may_have(Index tokens) const { return within(tokens, tokens_.begin, tokens_.end); }
  [[nodiscard]] bool may_swap(const Deal& deal, Index one, Index other) const {
    const int a = deal.rank_of(one), b = deal.rank_of(other);
    const Index longer = chunks_.tokens(one).count - chunks_.tokens(other).count;
    return a != b && may_have(deal.tokens(a) - longer) && may_have(deal.tokens(b) + longer);
  }
  /// The first chunk of a rank from `from` on; `from` where there is none.
  [[nodiscard]] Index chunk_of(const Deal& deal, int rank, Index from) const {
    const int *const begin = deal.rank_of().data(), *const end = begin + deal.rank_of().size();
    const int* const found = std::find(begin + from, end, rank);
    return found == end ? from : found - begin;
  }
  /// The first chunk from `from` on that is behind a chunk of the rank of `other`; `from` where there is none.
  [[nodiscard]] Index behind_a_run(const Deal& deal, Index other, Index from) const {
    const int rank = deal.rank_of(other);
    for (Index chunk = std::max<Index>(from, 1); chunk < chunks_.size(); ++chunk)
      if (chunk - 1 != other && deal.rank_of(chunk - 1) == rank && deal.rank_of(chunk) != rank) return chunk;
    return from;
  }

  const ChunkTiles& chunks_;
  int ranks_;
  Interval tokens_;
  std::uint64_t seed_;
  Index ideal_, trials_;
};

const Found& shortest(const std::vector<Found>& found) {
  return *std::ranges::min_element(found,
                                   [](const Found& a, const Found& b) { return is_earlier(a.cost, b.cost); });
}

/// The tokens that a rank may have: those of the contiguous deal, from the fewest to the most.
Interval even_tokens(const ChunkTiles& chunks, int ranks) {
  const Deal equal(chunks, contiguous(chunks.size(), ranks), ranks);
  Interval tokens{equal.tokens(0), equal.tokens(0)};
  for (int rank = 1; rank < ranks; ++rank)
    tokens = {std::min(tokens.begin, equal.tokens(rank)), std::max(tokens.end, equal.tokens(rank))};
  return tokens;
}

/// Groups of `chunks_of_group` chunks, as many as each rank can have, and then one smaller group for each rank.
std::vector<Index> groups_of(Index chunks, int ranks, Index chunks_of_group) {
  const Index turns = chunks / (chunks_of_group * ranks), rest = chunks - turns * ranks * chunks_of_group;
  std::vector<Index> firsts{0};
  for (Index group = 0; group < turns * ranks; ++group) firsts.push_back(firsts.back() + chunks_of_group);
  for (int rank = ranks - 1; rank >= 0 && rest >= ranks; --rank)  // the last group is one of the longest
    firsts.push_back(firsts.back() + length(piece_of(rest, rank, ranks)));
  for (Index chunk = 0; chunk < rest && rest < ranks; ++chunk) firsts.push_back(firsts.back() + 1);
  return firsts;
}

/// Deals of groups of chunks, in chunks: a swap of groups moves more, and there are fewer ranges.
std::vector<Found> in_groups(const ChunkTiles& chunks, int ranks, const Interval& tokens,
                             std::uint64_t seed) {
  constexpr Index groups_of_a_rank = 8;
  const Index chunks_of_group = chunks.size() / ranks / groups_of_a_rank;
  if (chunks_of_group < 2) return {};
  const std::vector<Index> firsts = groups_of(chunks.size(), ranks, chunks_of_group);
  const ChunkTiles groups(chunks, firsts);
  Search search(groups, ranks, tokens, seed);
  std::vector<Found> all;
  for (const Found& known : search.known()) {
    const Found found = search.shortened(known.rank_of);
    RankOfChunk rank_of;
    for (std::size_t group = 0; group < found.rank_of.size(); ++group)
      add_run(rank_of, found.rank_of[group], firsts[group + 1] - firsts[group]);
    all.push_back({rank_of, Deal(chunks, rank_of, ranks).cost(true)});
  }
  return all;
}

}  // namespace

std::vector<RankOfChunk> known_deals(Index chunks, int ranks) {
  return {contiguous(chunks, ranks), zigzag(chunks, ranks), in_turns(chunks, ranks, false),
          in_turns(chunks, ranks, true)};
}

RankOfChunk best_deal(const ChunkTiles& chunks, int ranks, std::uint64_t seed) {
  if (chunks.size() == 0) return {};
  const Interval tokens = even_tokens(chunks, ranks);
  Search search(chunks, ranks, tokens, seed);
  std::vector<Found> found = search.known();
  const std::vector<Found> known = found;
  const std::vector<Found> grouped = in_groups(chunks, ranks, tokens, seed);
  found.insert(found.end(), grouped.begin(), grouped.end());
  if (!grouped.empty()) found.push_back(search.shortened(shortest(grouped).rank_of));
  for (const Found& start : known) found.push_back(search.shortened(start.rank_of));

  const DealCost best = shortest(found).cost;
  DealCost limit{.finish = and_three_percent(best.finish), .busiest = best.busiest};
  for (const Found& one : found) limit.busiest = std::min(limit.busiest, one.cost.busiest);
  limit.busiest = std::max(best.busiest, and_three_percent(limit.busiest));
  std::erase_if(found, [&](const Found& one) {
    return one.cost.finish > limit.finish || one.cost.busiest > limit.busiest;
  });
  const auto cheapest = std::ranges::min_element(
      found, [](const Found& a, const Found& b) { return is_cheaper(a.cost, b.cost); });
  return search.cheapened(cheapest->rank_of, limit).rank_of;
}

}  // namespace ring_attention
