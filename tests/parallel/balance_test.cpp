// Placements that balance a mask. Tiles are counted once more here, one by one, from Mask::coverage.

#include "ring_attention/parallel/balance/balanced.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/ring_recurrence.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/balance/search.hpp"
#include "ring_attention/ring/kv_hops.hpp"
#include "ring_attention/ring/topology.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {
namespace {

constexpr Index S = 16384;

Mask packed(const std::vector<Index>& lengths) {
  std::vector<Index> boundaries{0};
  for (const Index length : lengths) boundaries.push_back(boundaries.back() + length);
  Mask mask = Mask::causal();
  mask.documents = std::make_shared<const Documents>(std::move(boundaries));
  return mask;
}

/// Lengths of which the logarithms are nearly normal (a sum of 12 uniform numbers), until they are `seq` tokens.
std::vector<Index> log_normal(Dice& dice, Index seq, double mu, double sigma) {
  std::vector<Index> lengths;
  for (Index left = seq; left > 0; left -= lengths.back()) {
    double normal = -6;
    for (int i = 0; i < 12; ++i) normal += dice.real(0, 1);
    lengths.push_back(std::min(left, 1 + static_cast<Index>(std::exp(mu + sigma * normal))));
  }
  return lengths;
}

Mask window(Index left) {
  Mask mask = Mask::causal();
  mask.left = left - 1;
  return mask;
}

struct NamedMask {
  std::string name;
  Mask mask;
};

std::vector<NamedMask> table() {
  Dice dice(7, 0);
  std::vector<Index> one_long{S * 7 / 8};
  one_long.insert(one_long.end(), 8, S / 64);
  Mask prefix = Mask::causal(), sinks = window(1024);
  prefix.sets = std::make_shared<const MaskSets>(MaskSets::Sets{.blocks = {{0, S / 2}}});
  sinks.sets = std::make_shared<const MaskSets>(MaskSets::Sets{.sink_tokens = 4});
  return {{"causal", Mask::causal()},
          {"30, 20, 40, 10 %", packed({S * 3 / 10, S / 5, S * 4 / 10, S - S * 3 / 10 - S / 5 - S * 4 / 10})},
          {"log-normal", packed(log_normal(dice, S, 6.5, 1.2))},
          {"7/8, then 8 short", packed(one_long)},
          {"window 1024", window(1024)},
          {"half a prefix", prefix},
          {"window 1024, 4 sinks", sinks}};
}

/// Tiles of each rank and step, [rank][step], one coverage for each tile.
std::vector<std::vector<Index>> tiles_one_by_one(const Placement& placement, const Mask& mask) {
  const auto blocks = [&](int rank) {
    std::vector<TokenRange> all;
    for (const TokenRange& range : placement.ranges(rank))
      for (Index i = 0; i < range.count; i += 64)
        all.push_back(range.slice(i, std::min<Index>(64, range.count - i)));
    return all;
  };
  std::vector<std::vector<Index>> tiles;
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const Ring ring{rank, placement.ranks()};
    for (int step = 0; step < ring.steps(); ++step) {
      if (step == 0) tiles.emplace_back();
      Index& sum = tiles.back().emplace_back(0);
      const std::vector<TokenRange> keys = blocks(ring.owner(step));
      for (const TokenRange& rows : blocks(rank))
        for (const TokenRange& columns : keys) sum += mask.coverage(rows, columns) != Coverage::none;
    }
  }
  return tiles;
}

struct Counted {
  Index busiest = 0, finish = 0, all = 0;
};

/// The finish by the recurrence of lesson 14, with hops that take no time.
Counted count_one_by_one(const Placement& placement, const Mask& mask) {
  const auto tiles = tiles_one_by_one(placement, mask);
  Counted counted;
  for (const auto& steps : tiles) {
    const Index sum = std::accumulate(steps.begin(), steps.end(), Index{0});
    counted.busiest = std::max(counted.busiest, sum);
    counted.all += sum;
  }
  const int ranks = placement.ranks();
  counted.finish = static_cast<Index>(plan::ring_seconds(
      ranks, ranks, ranks - 1,
      [&](int rank, int step) {
        return static_cast<double>(tiles[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)]);
      },
      [](int, int) { return 0.0; }));
  return counted;
}

/// An equal share of the tiles, or those of the heaviest chunk.
double bound_one_by_one(Index seq, int ranks, const Mask& mask) {
  const Index chunk = balanced_chunk(seq, ranks);
  std::vector<TokenRanges> chunks;
  for (Index begin = 0; begin < seq; begin += chunk)
    chunks.push_back({{begin, 1, std::min(chunk, seq - begin)}});
  Index heaviest = 0, all = 0;
  for (const auto& row : tiles_one_by_one(Placement(chunks), mask)) {
    const Index sum = std::accumulate(row.begin(), row.end(), Index{0});
    heaviest = std::max(heaviest, sum);
    all += sum;
  }
  return std::max(static_cast<double>(all) / ranks, static_cast<double>(heaviest));
}

/// The tokens of two ranks differ by a chunk at most.
void expect_even(const Placement& placement, Index chunk) {
  Index least = placement.tokens(0);
  for (int rank = 1; rank < placement.ranks(); ++rank) least = std::min(least, placement.tokens(rank));
  EXPECT_LE(placement.max_tokens() - least, chunk) << placement.seq() << " tokens on " << placement.ranks();
}

void expect_balance(const std::string& name, const Mask& mask, int ranks) {
  SCOPED_TRACE(name + " on " + std::to_string(ranks) + " ranks");
  const Placement placement = balanced(S, ranks, mask);
  const Counted found = count_one_by_one(placement, mask);
  const double bound = bound_one_by_one(S, ranks, mask);
  EXPECT_LE(static_cast<double>(found.busiest), 1.08 * bound);
  EXPECT_LE(static_cast<double>(found.finish), 1.08 * bound);
  for (const PlacementKind kind :
       {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
    const Balance other = balance_of(Placement(kind, S, ranks), mask);
    EXPECT_LE(static_cast<double>(found.busiest), 1.03 * static_cast<double>(other.busiest))
        << ring_attention::name(kind);
    EXPECT_LE(static_cast<double>(found.finish), 1.03 * static_cast<double>(other.finish))
        << ring_attention::name(kind);
  }
  expect_even(placement, balanced_chunk(S, ranks));
  const Balance balance = balance_of(placement, mask);
  EXPECT_EQ(balance.busiest, found.busiest);
  EXPECT_EQ(balance.finish, found.finish);
  EXPECT_EQ(balance.tiles, found.all);
  EXPECT_EQ(balance.bound, static_cast<Index>(std::ceil(bound)));
  Index hops = 0;
  const std::vector<int> of_owners = kv_hops(mask, placement, placement);
  for (int rank = 0; rank < ranks; ++rank)
    hops += of_owners[static_cast<std::size_t>(rank)] * placement.tokens(rank);
  EXPECT_EQ(balance.hops, hops);
}

TEST(Balance, OfEveryMaskOfTheTable) {
  for (const int ranks : {2, 4, 8, 16})
    for (const auto& [name, mask] : table()) expect_balance(name, mask, ranks);
}

using BalanceOfDocuments = ::testing::TestWithParam<int>;  // parts of the file share the time

TEST_P(BalanceOfDocuments, OfFiveSets) {
  Dice dice(11, GetParam());
  for (int i = 0; i < 5; ++i) {
    const Mask mask = packed(log_normal(dice, S, dice.real(5, 8.2), dice.real(0.3, 1.5)));
    for (const int ranks : {2, 4, 8, 16}) expect_balance("set " + std::to_string(i), mask, ranks);
  }
}
INSTANTIATE_TEST_SUITE_P(Tenths, BalanceOfDocuments, ::testing::Range(0, 10));

TEST(Balance, OfAWindowShorterThanAShardIsContiguous) {
  for (const int ranks : {2, 4, 8, 16}) {
    const Placement placement = balanced(S, ranks, window(512)),
                    contiguous(PlacementKind::contiguous, S, ranks);
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(placement.ranges(rank), contiguous.ranges(rank));
  }
}

TEST(Balance, OfPlacementsWithStridesIsCountedAsWell) {
  for (const auto& [name, mask] : table())
    for (const PlacementKind kind :
         {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
      const Placement placement(kind, 4099, 5);
      const Balance balance = balance_of(placement, mask);
      const Counted counted = count_one_by_one(placement, mask);
      EXPECT_EQ(balance.busiest, counted.busiest) << name;
      EXPECT_EQ(balance.finish, counted.finish) << name;
    }
}

TEST(Balance, AnyLengthOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 5, 7, 12})
    for (const Index seq : {0, 1, 5, 63, 64, 65, 500, 640, 1000, 4096, 20001}) {
      const Placement placement = balanced(seq, ranks, Mask::causal());
      EXPECT_EQ(placement.seq(), seq);
      EXPECT_EQ(placement.ranks(), ranks);
      expect_even(placement, balanced_chunk(seq, ranks));
      for (int rank = 0; rank < ranks; ++rank) EXPECT_LE(std::ssize(placement.ranges(rank)), 64);
    }
  EXPECT_EQ(balanced(1000, 1, Mask::causal()).ranges(0), (TokenRanges{{0, 1, 1000}}));
}

TEST(Balance, AMaskWithAnOffset) {
  Mask mask = window(100);
  mask.offset = -300;  // the first queries see nothing
  const Balance balance = balance_of(balanced(2048, 4, mask), mask);
  EXPECT_LE(balance.relative(balance.finish), 1.35 * balance.relative(balance.bound));  // of 28 tiles each
  mask.documents = std::make_shared<const Documents>(std::vector<Index>{0, 100, 2048});
  EXPECT_THROW((void)balanced(2048, 4, mask, 128), InputError);
}

TEST(Balance, IsBoundedByTheHeaviestChunk) {
  Mask mask;  // the queries of the first of 16 chunks see all keys, each other one itself
  std::vector<Interval> rows;
  for (Index i = 0; i < 1024; ++i) rows.push_back(i < 64 ? Interval{0, 1024} : Interval{i, i + 1});
  mask.sets = std::make_shared<const MaskRows>(std::move(rows), 1);
  const Balance balance = balance_of(balanced(1024, 8, mask), mask);
  EXPECT_EQ(balance.tiles, 16 + 15);
  EXPECT_EQ(balance.bound, 16);
  EXPECT_EQ(bound_one_by_one(1024, 8, mask), 16);
  EXPECT_GE(balance.busiest, 16);
}

// The other way round there are 2560.
TEST(Balance, SavesHopsBeforeRanges) {
  Mask mask;
  mask.documents =
      std::make_shared<const Documents>(std::vector<Index>{0, 32, 153, 223, 275, 364, 515, 645, 704});
  EXPECT_LE(balance_of(balanced(704, 5, mask), mask).hops, 2048);
}

// To save hops and ranges the last phase may move the finish by 3 %, and the tiles of the busiest rank as well: 9 of 8 is more.
TEST(Balance, KeepsTheBusiestRankWithinThreePercent) {
  EXPECT_EQ(balance_of(balanced(576, 6, window(397)), window(397)).busiest, 8);
}

TEST(Balance, OfLongSequencesDoesNotOverflow) {
  const Balance balance = balance_of(Placement(PlacementKind::contiguous, Index{1} << 36U, 2), Mask{});
  EXPECT_EQ(balance.relative(balance.busiest), 1);
  EXPECT_EQ(balance.relative(balance.bound), 1);
}

TEST(Balance, ChunksFollowFromTheLengthAndTheRanks) {
  EXPECT_EQ(balanced_chunk(16384, 8), 64);
  EXPECT_EQ(balanced_chunk(16384, 4), 64);
  EXPECT_EQ(balanced_chunk(16385, 4), 128);  // 64 chunks a rank at most
  EXPECT_EQ(balanced_chunk(16384, 2), 128);
  EXPECT_EQ(balanced_chunk(1, 8), 64);
  EXPECT_EQ(balanced_chunk(1048576, 64), 256);
  EXPECT_EQ(balanced_chunk(1048576, 2048), 256);  // 4096 chunks in all
  EXPECT_EQ(balanced_chunk(16384, 8, 256), 256);  // a multiple of the tile
  EXPECT_EQ(balanced_chunk(16384, 8, 50), 100);
  EXPECT_EQ(balanced_chunk(1048576, 4, 300), 4200);
}

TEST(Balance, OfTheSameBitsHoldsWholeTiles) {
  Dice dice(3, 0);
  for (const Index tile : {16, 64, 100, 256})
    for (const bool documents : {false, true}) {
      const Mask mask = documents ? packed(log_normal(dice, 8000, 5, 1)) : Mask::causal();
      const Placement placement = balanced(8000, 5, mask, tile);
      for (int rank = 0; rank < 5; ++rank)
        EXPECT_NO_THROW((void)tiles_of(placement.ranges(rank), Tiling(tile, mask.documents))) << tile;
      EXPECT_EQ(placement.pieces(), std::ssize(Tiling(tile, mask.documents).cuts(8000)) - 1) << tile;
      expect_even(placement, (documents ? 3 : 1) * balanced_chunk(8000, 5, tile));
      const Balance balance = balance_of(placement, mask);
      EXPECT_LE(balance.relative(balance.finish), 1.35 * balance.relative(balance.bound)) << tile;
    }
}

TEST(Balance, EverySearchFindsTheSame) {
  Dice dice(5, 0);
  const Mask mask = packed(log_normal(dice, 9000, 6, 1));
  EXPECT_EQ(balanced(9000, 6, mask).hash(), balanced(9000, 6, mask).hash());
  std::vector<Index> cuts;
  for (Index begin = 0; begin < 9000; begin += 64) cuts.push_back(begin);
  cuts.push_back(9000);
  const ChunkTiles chunks(mask, cuts);
  EXPECT_EQ(best_deal(chunks, 6, 1), best_deal(chunks, 6, 1));
  EXPECT_NE(best_deal(chunks, 6, 1), best_deal(chunks, 6, 2))
      << "the seed means nothing: does the search swap?";
}

TEST(Balance, RefusesMoreRanksThanASearchTakes) {
  EXPECT_EQ(balanced(30000, 500, Mask::causal()).ranks(), 500);
  EXPECT_THROW((void)balanced(100000, 2049, Mask::causal()), InputError);
  EXPECT_THROW((void)balance_of(Placement(PlacementKind::zigzag, 100000, 2049), Mask::causal()), InputError);
}

// ---- the parts of the search -------------------------------------------------------------------------------------

TEST(KnownDeals, GiveEachRankTheSameNumberOfChunksOrOneMore) {
  for (const int ranks : {1, 2, 3, 4, 7})
    for (Index chunks = 1; chunks <= 40; ++chunks)
      for (const RankOfChunk& deal : known_deals(chunks, ranks)) {
        ASSERT_EQ(std::ssize(deal), chunks);
        std::vector<Index> of_ranks(static_cast<std::size_t>(ranks));
        for (const int rank : deal) ++of_ranks.at(static_cast<std::size_t>(rank));
        EXPECT_LE(std::ranges::max(of_ranks) - std::ranges::min(of_ranks), 1);
        EXPECT_EQ(of_ranks[static_cast<std::size_t>(deal.back())], std::ranges::max(of_ranks));
      }
}

TEST(KnownDeals, AreThePlacementsInWholeChunks) {
  const std::vector<RankOfChunk> deals = known_deals(48, 4);
  for (const auto& [index, kind] :
       {std::pair{0, PlacementKind::contiguous}, {1, PlacementKind::zigzag}, {2, PlacementKind::striped}}) {
    const Placement placement(kind, 48, 4);
    for (int rank = 0; rank < 4; ++rank)
      for (const Index chunk : positions(placement.ranges(rank)))
        EXPECT_EQ(deals[static_cast<std::size_t>(index)][static_cast<std::size_t>(chunk)], rank)
            << name(kind);
  }
}

TEST(Deal, ASwapChangesTheCostAsANewDealHasIt) {
  Dice dice(9, 0);
  const Mask mask = packed(log_normal(dice, 3000, 5, 1));
  std::vector<Index> cuts{0};
  while (cuts.back() < 3000) cuts.push_back(std::min<Index>(3000, cuts.back() + dice.between(50, 150)));
  const ChunkTiles chunks(mask, cuts);
  for (const int ranks : {2, 3, 5}) {
    Deal deal(chunks, known_deals(chunks.size(), ranks)[3], ranks);
    for (int i = 0; i < 100; ++i) {
      const Index one = dice.between(0, chunks.size() - 1), other = dice.between(0, chunks.size() - 1);
      const DealCost before = deal.cost(true), expected = deal.cost_of_swap(one, other, true);
      EXPECT_EQ(deal.cost(true), before) << "to ask for the cost of a swap makes none";
      deal.swap(one, other);
      EXPECT_EQ(deal.cost(true), expected);
      EXPECT_EQ(deal.cost(true), Deal(chunks, deal.rank_of(), ranks).cost(true));
    }
  }
}

TEST(ChunkTiles, AreThoseOfEachPairOfUnevenChunks) {
  for (const Mask& mask : {Mask{}, Mask::causal(), window(300)}) {
    const ChunkTiles chunks(mask, {0, 64, 65, 320, 700, 1000});
    for (Index i = 0; i < chunks.size(); ++i)
      for (Index j = 0; j < chunks.size(); ++j)
        EXPECT_EQ(chunks.at(i, j), visible_tiles(mask, chunks.tokens(i), chunks.tokens(j))) << i << ", " << j;
  }
}

TEST(ChunkTiles, GroupsAreSums) {
  const Mask mask = window(300);
  std::vector<Index> cuts;
  for (Index begin = 0; begin <= 1280; begin += 64) cuts.push_back(begin);
  const ChunkTiles chunks(mask, cuts), groups(chunks, {0, 3, 4, 11, 20});
  Index all = 0, of_groups = 0;
  for (Index i = 0; i < chunks.size(); ++i)
    for (const std::int32_t tiles : chunks.row(i)) all += tiles;
  for (Index i = 0; i < groups.size(); ++i)
    for (const std::int32_t tiles : groups.row(i)) of_groups += tiles;
  EXPECT_EQ(groups.size(), 4);
  EXPECT_EQ(groups.tokens(2), (TokenRange{256, 1, 448}));
  EXPECT_EQ(of_groups, all);
  EXPECT_EQ(groups.at(1, 0), chunks.at(3, 0) + chunks.at(3, 1) + chunks.at(3, 2));
}

}  // namespace
}  // namespace ring_attention::test
