// The neighbours of a rank, and the owner of the K,V that it holds at each step.

#include "ring_attention/ring/topology.hpp"

#include <gtest/gtest.h>

#include <set>

namespace ring_attention::test {
namespace {

TEST(Ring, OfFourByHand) {
  const Ring ring{.rank = 1, .size = 4};
  EXPECT_EQ(ring.next(), 2);
  EXPECT_EQ(ring.prev(), 0);
  EXPECT_EQ(ring.steps(), 4);
  EXPECT_EQ(ring.owner(0), 1);
  EXPECT_EQ(ring.owner(1), 0);
  EXPECT_EQ(ring.owner(2), 3);
  EXPECT_EQ(ring.owner(3), 2);
}

TEST(Ring, OfOneIsItsOwnNeighbour) {
  const Ring ring{.rank = 0, .size = 1};
  EXPECT_EQ(ring.next(), 0);
  EXPECT_EQ(ring.prev(), 0);
  EXPECT_EQ(ring.steps(), 1);
  EXPECT_EQ(ring.owner(0), 0);
}

TEST(Ring, EveryRankHoldsEveryShardOnceAndGetsItFromItsPrevious) {
  for (int size = 1; size <= 9; ++size)
    for (int rank = 0; rank < size; ++rank) {
      const Ring ring{rank, size};
      const Ring previous{ring.prev(), size};
      EXPECT_EQ(previous.next(), rank);
      EXPECT_EQ(ring.owner(0), rank);
      std::set<int> owners;
      for (int step = 0; step < ring.steps(); ++step) {
        owners.insert(ring.owner(step));
        if (step > 0) {
          EXPECT_EQ(ring.owner(step), previous.owner(step - 1)) << size << " ranks, rank " << rank;
        }
      }
      EXPECT_EQ(owners.size(), static_cast<std::size_t>(size));
      EXPECT_EQ(*owners.begin(), 0);
      EXPECT_EQ(*owners.rbegin(), size - 1);
    }
}

TEST(Ring, TheParcelThatIsNeverSentIsThatOfTheNextRank) {
  for (int size = 2; size <= 9; ++size)
    for (int rank = 0; rank < size; ++rank) {
      const Ring ring{rank, size};
      EXPECT_EQ(ring.owner(ring.steps() - 1), ring.next());
    }
}

}  // namespace
}  // namespace ring_attention::test
