// Which tokens each rank holds.

#include "ring_attention/ring/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {
namespace {

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

TEST(Placement, EveryTokenStandsOnOneRankAndShardsDifferByOneAtMost) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (Index seq = 0; seq <= 40; ++seq) {
      const Placement placement(Layout::contiguous, seq, ranks);
      std::vector<Index> all;
      Index least = seq;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto some = positions(placement.runs(rank));
        all.insert(all.end(), some.begin(), some.end());
        least = std::min(least, placement.tokens(rank));
      }
      std::vector<Index> want(static_cast<std::size_t>(seq));
      std::iota(want.begin(), want.end(), 0);
      EXPECT_EQ(all, want) << seq << " tokens on " << ranks;
      EXPECT_LE(placement.max_tokens() - least, 1);
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
