// Which tokens each rank holds.

#include "ring_attention/ring/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {
namespace {

constexpr PlacementKind placement_kinds[] = {PlacementKind::contiguous, PlacementKind::striped,
                                             PlacementKind::zigzag};

TEST(Placement, ContiguousByHand) {
  const Placement placement(PlacementKind::contiguous, 11, 4);
  EXPECT_EQ(placement.ranges(0), (TokenRanges{{0, 1, 3}}));
  EXPECT_EQ(placement.ranges(1), (TokenRanges{{3, 1, 3}}));
  EXPECT_EQ(placement.ranges(2), (TokenRanges{{6, 1, 3}}));
  EXPECT_EQ(placement.ranges(3), (TokenRanges{{9, 1, 2}}));
  EXPECT_EQ(placement.max_tokens(), 3);
  EXPECT_EQ(placement.tokens(3), 2);
}

TEST(Placement, WithMoreRanksThanTokensTheLastHoldNone) {
  const Placement placement(PlacementKind::contiguous, 5, 7);
  EXPECT_EQ(placement.ranges(4), (TokenRanges{{4, 1, 1}}));
  EXPECT_EQ(placement.ranges(5), TokenRanges{});
  EXPECT_EQ(placement.tokens(6), 0);
  EXPECT_EQ(placement.max_tokens(), 1);
}

TEST(Placement, OfNothingHoldsNothing) {
  const Placement placement(PlacementKind::contiguous, 0, 3);
  EXPECT_EQ(placement.ranges(0), TokenRanges{});
  EXPECT_EQ(placement.max_tokens(), 0);
}

TEST(Placement, StripedByHand) {
  const Placement placement(PlacementKind::striped, 11, 4);
  EXPECT_EQ(placement.ranges(0), (TokenRanges{{0, 4, 3}}));  // 0, 4, 8
  EXPECT_EQ(placement.ranges(3), (TokenRanges{{3, 4, 2}}));  // 3, 7
  EXPECT_EQ(Placement(PlacementKind::striped, 2, 3).ranges(2), TokenRanges{});
}

TEST(Placement, ZigzagByHand) {
  const Placement placement(PlacementKind::zigzag, 16, 4);
  EXPECT_EQ(positions(placement.ranges(0)), (std::vector<Index>{0, 1, 14, 15}));
  EXPECT_EQ(positions(placement.ranges(1)), (std::vector<Index>{2, 3, 12, 13}));
  EXPECT_EQ(positions(placement.ranges(2)), (std::vector<Index>{4, 5, 10, 11}));
  EXPECT_EQ(placement.ranges(0), (TokenRanges{{0, 1, 2}, {14, 1, 2}}));
  EXPECT_EQ(placement.ranges(3), (TokenRanges{{6, 1, 4}})) << "neighbours are one run";
}

/// Every rank's tokens in one line each.
std::vector<std::vector<Index>> all_positions(const Placement& placement) {
  std::vector<std::vector<Index>> all;
  for (int rank = 0; rank < placement.ranks(); ++rank) all.push_back(positions(placement.ranges(rank)));
  return all;
}

TEST(Placement, UnevenLengthsByHand) {
  using Lists = std::vector<std::vector<Index>>;
  EXPECT_EQ(all_positions(Placement(PlacementKind::contiguous, 7, 3)), (Lists{{0, 1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(all_positions(Placement(PlacementKind::striped, 7, 3)), (Lists{{0, 3, 6}, {1, 4}, {2, 5}}));
  // Six slices of 2, 1, 1, 1, 1, 1.
  EXPECT_EQ(all_positions(Placement(PlacementKind::zigzag, 7, 3)), (Lists{{0, 1, 6}, {2, 5}, {3, 4}}));
  // Ten slices of 3, 3, 3, 2, 2, 2, 2, 2, 2, 2.
  EXPECT_EQ(
      all_positions(Placement(PlacementKind::zigzag, 23, 5)),
      (Lists{{0, 1, 2, 21, 22}, {3, 4, 5, 19, 20}, {6, 7, 8, 17, 18}, {9, 10, 15, 16}, {11, 12, 13, 14}}));
}

TEST(Placement, FewerTokensThanRanksByHand) {
  using Lists = std::vector<std::vector<Index>>;
  const Lists one_each{{0}, {1}, {2}, {}, {}};
  for (const PlacementKind kind : placement_kinds) EXPECT_EQ(all_positions(Placement(kind, 3, 5)), one_each);
  EXPECT_EQ(all_positions(Placement(PlacementKind::zigzag, 6, 4)), (Lists{{0}, {1}, {2, 5}, {3, 4}}));
  EXPECT_EQ(all_positions(Placement(PlacementKind::striped, 6, 4)), (Lists{{0, 4}, {1, 5}, {2}, {3}}));
}

TEST(Placement, OfOneRankIsOneRange) {
  for (const PlacementKind kind : placement_kinds)
    EXPECT_EQ(Placement(kind, 9, 1).ranges(0), (TokenRanges{{0, 1, 9}}));
}

TEST(Placement, OfRangesByHand) {
  const Placement placement({{{0, 1, 2}, {6, 1, 2}, {8, 1, 1}}, {}, {{2, 1, 4}}});
  EXPECT_EQ(placement.kind(), PlacementKind::balanced);
  EXPECT_EQ(placement.seq(), 9);
  EXPECT_EQ(placement.ranks(), 3);
  EXPECT_EQ(placement.ranges(0), (TokenRanges{{0, 1, 2}, {6, 1, 3}})) << "neighbours are one run";
  EXPECT_EQ(placement.ranges(1), TokenRanges{});
  EXPECT_EQ(placement.ranges(2), (TokenRanges{{2, 1, 4}}));
  EXPECT_EQ(placement.max_tokens(), 5);
  EXPECT_EQ(Placement(std::vector<TokenRanges>(2)).seq(), 0);
}

TEST(Placement, OfRangesHasEachTokenOnce) {
  const auto refused = [](std::vector<TokenRanges> shards) {
    EXPECT_THROW((void)Placement(std::move(shards)), Error);
  };
  refused({});
  refused({{{0, 1, 2}}, {{3, 1, 2}}});             // token 2 is on no rank
  refused({{{0, 1, 2}}, {{1, 1, 2}}});             // token 1 on two
  refused({{{1, 1, 2}}, {{3, 1, 2}}});             // token 0 on none
  refused({{{2, 1, 2}, {0, 1, 2}}, {{4, 1, 1}}});  // not ascending
  refused({{{0, 2, 2}}, {{1, 2, 2}}});             // strides
  refused({{{0, 1, 2}, {2, 1, 0}}});               // an empty range
  refused({{{0, 1, 2}}, {{2, 1, -1}}});
  refused({{{0, 1, largest_position}, {largest_position, 1, 1}}});
}

TEST(Placement, TheHashTellsRangesApart) {
  const std::vector<TokenRanges> shards{{{0, 1, 2}, {4, 1, 2}}, {{2, 1, 2}, {6, 1, 1}}};
  const std::uint64_t hash = Placement(shards).hash();
  EXPECT_EQ(Placement({{{0, 1, 1}, {1, 1, 1}, {4, 1, 2}}, {{2, 1, 2}, {6, 1, 1}}}).hash(), hash)
      << "the same tokens";
  EXPECT_NE(Placement({shards[1], shards[0]}).hash(), hash);
  EXPECT_NE(Placement({{{0, 1, 4}}, {{4, 1, 4}}}).hash(), Placement({{{4, 1, 4}}, {{0, 1, 4}}}).hash())
      << "as many tokens, in other places";
  EXPECT_NE(Placement({{{0, 1, 2}, {4, 1, 3}}, {{2, 1, 2}}}).hash(), hash);
  EXPECT_NE(Placement({{{0, 1, 2}, {4, 1, 2}}, {{2, 1, 2}}, {{6, 1, 1}}}).hash(), hash);
  EXPECT_EQ(Placement(PlacementKind::zigzag, 7, 2).hash(), 0);
  EXPECT_NE(Placement(PlacementKind::zigzag, {0, 3, 7}, 2).hash(),
            Placement(PlacementKind::zigzag, {0, 4, 7}, 2).hash())
      << "other cuts";
}

TEST(Placement, KindsHaveNames) {
  EXPECT_EQ(placement_kind_named("balanced"), PlacementKind::balanced);
  EXPECT_EQ(name(PlacementKind::balanced), "balanced");
  for (const PlacementKind kind : placement_kinds) EXPECT_EQ(placement_kind_named(name(kind)), kind);
  EXPECT_EQ(placement_kind_named("contiguous"), PlacementKind::contiguous);
  EXPECT_EQ(placement_kind_named("striped"), PlacementKind::striped);
  EXPECT_EQ(placement_kind_named("zigzag"), PlacementKind::zigzag);
  EXPECT_THROW((void)placement_kind_named("Zigzag"), Error);
  EXPECT_THROW((void)placement_kind_named(""), Error);
  EXPECT_THROW((void)placement_kind_named("diagonal"), Error);
}

/// Every token is on one rank, and shards differ by one token at most.
void expect_a_partition(const Placement& placement) {
  std::vector<Index> all;
  Index least = placement.seq();
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const auto some = positions(placement.ranges(rank));
    EXPECT_TRUE(std::ranges::is_sorted(some));
    all.insert(all.end(), some.begin(), some.end());
    least = std::min(least, placement.tokens(rank));
  }
  std::ranges::sort(all);
  std::vector<Index> want(static_cast<std::size_t>(placement.seq()));
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(all, want) << placement.seq() << " tokens on " << placement.ranks();
  EXPECT_LE(placement.max_tokens() - least, 1);
}

TEST(Placement, EveryTokenIsOnOneRankAndShardsAreNearlyEqual) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (Index seq = 0; seq <= 40; ++seq)
      for (const PlacementKind kind : placement_kinds) {
        SCOPED_TRACE(name(kind));
        expect_a_partition(Placement(kind, seq, ranks));
      }
}

TEST(Placement, LongSequencesDoNotOverflow) {
  const Index seq = (Index{1} << 40) + 3;
  const Placement placement(PlacementKind::contiguous, seq, 7);
  EXPECT_EQ(placement.ranges(6).front().end(), seq);
}

TEST(Placement, RefusesWhatIsNoRing) {
  EXPECT_THROW(Placement(PlacementKind::contiguous, 4, 0), Error);
  EXPECT_THROW(Placement(PlacementKind::contiguous, -1, 2), Error);
  EXPECT_THROW(Placement(PlacementKind::balanced, 4, 2), Error);
  const Placement placement(PlacementKind::contiguous, 4, 2);
  EXPECT_THROW((void)placement.ranges(2), Error);
  EXPECT_THROW((void)placement.ranges(-1), Error);
}

}  // namespace
}  // namespace ring_attention::test
