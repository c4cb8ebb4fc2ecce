// Which tokens each rank holds.

#include "ring_attention/ring/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {
namespace {

constexpr Layout layouts[] = {Layout::contiguous, Layout::striped, Layout::zigzag};

TEST(Placement, ContiguousByHand) {
  const Placement placement(Layout::contiguous, 11, 4);
  EXPECT_EQ(placement.runs(0), (Runs{{0, 1, 3}}));
  EXPECT_EQ(placement.runs(1), (Runs{{3, 1, 3}}));
  EXPECT_EQ(placement.runs(2), (Runs{{6, 1, 3}}));
  EXPECT_EQ(placement.runs(3), (Runs{{9, 1, 2}}));
  EXPECT_EQ(placement.max_tokens(), 3);
  EXPECT_EQ(placement.tokens(3), 2);
}

TEST(Placement, WithMoreRanksThanTokensTheLastHoldNone) {
  const Placement placement(Layout::contiguous, 5, 7);
  EXPECT_EQ(placement.runs(4), (Runs{{4, 1, 1}}));
  EXPECT_EQ(placement.runs(5), Runs{});
  EXPECT_EQ(placement.tokens(6), 0);
  EXPECT_EQ(placement.max_tokens(), 1);
}

TEST(Placement, OfNothingHoldsNothing) {
  const Placement placement(Layout::contiguous, 0, 3);
  EXPECT_EQ(placement.runs(0), Runs{});
  EXPECT_EQ(placement.max_tokens(), 0);
}

TEST(Placement, StripedByHand) {
  const Placement placement(Layout::striped, 11, 4);
  EXPECT_EQ(placement.runs(0), (Runs{{0, 4, 3}}));  // 0, 4, 8
  EXPECT_EQ(placement.runs(3), (Runs{{3, 4, 2}}));  // 3, 7
  EXPECT_EQ(Placement(Layout::striped, 2, 3).runs(2), Runs{});
}

TEST(Placement, ZigzagByHand) {
  const Placement placement(Layout::zigzag, 16, 4);
  EXPECT_EQ(positions(placement.runs(0)), (std::vector<Index>{0, 1, 14, 15}));
  EXPECT_EQ(positions(placement.runs(1)), (std::vector<Index>{2, 3, 12, 13}));
  EXPECT_EQ(positions(placement.runs(2)), (std::vector<Index>{4, 5, 10, 11}));
  EXPECT_EQ(placement.runs(0), (Runs{{0, 1, 2}, {14, 1, 2}}));
  EXPECT_EQ(placement.runs(3), (Runs{{6, 1, 4}})) << "neighbours are one run";
}

/// Every rank's tokens in one line each.
std::vector<std::vector<Index>> all_positions(const Placement& placement) {
  std::vector<std::vector<Index>> all;
  for (int rank = 0; rank < placement.ranks(); ++rank) all.push_back(positions(placement.runs(rank)));
  return all;
}

TEST(Placement, UnevenLengthsByHand) {
  using Lists = std::vector<std::vector<Index>>;
  EXPECT_EQ(all_positions(Placement(Layout::contiguous, 7, 3)), (Lists{{0, 1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(all_positions(Placement(Layout::striped, 7, 3)), (Lists{{0, 3, 6}, {1, 4}, {2, 5}}));
  // Six slices of 2, 1, 1, 1, 1, 1.
  EXPECT_EQ(all_positions(Placement(Layout::zigzag, 7, 3)), (Lists{{0, 1, 6}, {2, 5}, {3, 4}}));
  // Ten slices of 3, 3, 3, 2, 2, 2, 2, 2, 2, 2.
  EXPECT_EQ(
      all_positions(Placement(Layout::zigzag, 23, 5)),
      (Lists{{0, 1, 2, 21, 22}, {3, 4, 5, 19, 20}, {6, 7, 8, 17, 18}, {9, 10, 15, 16}, {11, 12, 13, 14}}));
}

TEST(Placement, FewerTokensThanRanksByHand) {
  using Lists = std::vector<std::vector<Index>>;
  const Lists one_each{{0}, {1}, {2}, {}, {}};
  for (const Layout layout : layouts) EXPECT_EQ(all_positions(Placement(layout, 3, 5)), one_each);
  EXPECT_EQ(all_positions(Placement(Layout::zigzag, 6, 4)), (Lists{{0}, {1}, {2, 5}, {3, 4}}));
  EXPECT_EQ(all_positions(Placement(Layout::striped, 6, 4)), (Lists{{0, 4}, {1, 5}, {2}, {3}}));
}

TEST(Placement, OfOneRankIsOneRun) {
  for (const Layout layout : layouts) EXPECT_EQ(Placement(layout, 9, 1).runs(0), (Runs{{0, 1, 9}}));
}

TEST(Placement, LayoutsHaveNames) {
  for (const Layout layout : layouts) EXPECT_EQ(layout_named(name(layout)), layout);
  EXPECT_EQ(layout_named("contiguous"), Layout::contiguous);
  EXPECT_EQ(layout_named("striped"), Layout::striped);
  EXPECT_EQ(layout_named("zigzag"), Layout::zigzag);
  EXPECT_THROW((void)layout_named("Zigzag"), Error);
  EXPECT_THROW((void)layout_named(""), Error);
  EXPECT_THROW((void)layout_named("diagonal"), Error);
}

/// Every token stands on one rank, and shards differ by one at most.
void expect_a_partition(const Placement& placement) {
  std::vector<Index> all;
  Index least = placement.seq();
  for (int rank = 0; rank < placement.ranks(); ++rank) {
    const auto some = positions(placement.runs(rank));
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

TEST(Placement, EveryTokenStandsOnOneRankAndShardsAreNearlyEqual) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (Index seq = 0; seq <= 40; ++seq)
      for (const Layout layout : layouts) {
        SCOPED_TRACE(name(layout));
        expect_a_partition(Placement(layout, seq, ranks));
      }
}

TEST(Placement, LongSequencesDoNotOverflow) {
  const Index seq = (Index{1} << 40) + 3;
  const Placement placement(Layout::contiguous, seq, 7);
  EXPECT_EQ(placement.runs(6).front().last(), seq - 1);
}

TEST(Placement, RefusesWhatIsNoRing) {
  EXPECT_THROW(Placement(Layout::contiguous, 4, 0), Error);
  EXPECT_THROW(Placement(Layout::contiguous, -1, 2), Error);
  const Placement placement(Layout::contiguous, 4, 2);
  EXPECT_THROW((void)placement.runs(2), Error);
  EXPECT_THROW((void)placement.runs(-1), Error);
}

}  // namespace
}  // namespace ring_attention::test
