#include "ring_attention/core/run.hpp"

#include <gtest/gtest.h>

namespace ring_attention {
namespace {

using TokenRun = Run;  // inside a test, Run is GoogleTest's

TEST(Run, PositionsAreBeginPlusMultiplesOfTheStride) {
  const TokenRun run{3, 4, 5};
  EXPECT_EQ(run.position(0), 3);
  EXPECT_EQ(run.position(2), 11);
  EXPECT_EQ(run.first(), 3);
  EXPECT_EQ(run.last(), 19);
  EXPECT_EQ((TokenRun{7, 1, 1}).last(), 7);
}

TEST(Run, ASliceKeepsTheStride) {
  const TokenRun run{3, 4, 5};
  EXPECT_EQ(run.slice(1, 3), (TokenRun{7, 4, 3}));
  EXPECT_EQ(run.slice(0, 5), run);
  EXPECT_EQ(run.slice(5, 0).count, 0);
  EXPECT_EQ(run.slice(1, 3).last(), run.position(3));
}

TEST(Run, TokensBeforeAPosition) {
  const TokenRun run{3, 4, 3};  // 3, 7, 11
  for (const auto& [position, tokens] :
       {std::pair(-5, 0), {3, 0}, {4, 1}, {7, 1}, {8, 2}, {11, 2}, {12, 3}, {1000, 3}})
    EXPECT_EQ(run.before(position), tokens) << position;
  EXPECT_EQ((TokenRun{5, 1, 0}).before(9), 0);
}

TEST(Runs, TheWholeSequenceIsOneRun) {
  EXPECT_EQ(whole(6), (Runs{{0, 1, 6}}));
  EXPECT_EQ(whole(0), Runs{});
}

TEST(Runs, CountAndPositionsFollowMemoryOrder) {
  const Runs runs{{8, 1, 3}, {5, 1, 0}, {0, 3, 2}};
  EXPECT_EQ(count(runs), 5);
  EXPECT_EQ(positions(runs), (std::vector<Index>{8, 9, 10, 0, 3}));
  EXPECT_EQ(count({}), 0);
  EXPECT_TRUE(positions({}).empty());
}

TEST(Runs, PositionsPast2To31) {
  const TokenRun run{Index{1} << 40, Index{1} << 20, 3};
  EXPECT_EQ(run.last(), (Index{1} << 40) + (Index{1} << 21));
}

}  // namespace
}  // namespace ring_attention
