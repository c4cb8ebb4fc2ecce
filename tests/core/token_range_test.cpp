#include "ring_attention/core/token_range.hpp"

#include <gtest/gtest.h>

namespace ring_attention {
namespace {

TEST(TokenRange, PositionsAreBeginPlusMultiplesOfTheStride) {
  const TokenRange range{3, 4, 5};
  EXPECT_EQ(range.position(0), 3);
  EXPECT_EQ(range.position(2), 11);
  EXPECT_EQ(range.begin, 3);
  EXPECT_EQ(range.end(), 20);
  EXPECT_EQ((TokenRange{7, 1, 1}).end(), 8);
}

TEST(TokenRange, ASliceKeepsTheStride) {
  const TokenRange range{3, 4, 5};
  EXPECT_EQ(range.slice(1, 3), (TokenRange{7, 4, 3}));
  EXPECT_EQ(range.slice(0, 5), range);
  EXPECT_EQ(range.slice(5, 0).count, 0);
  EXPECT_EQ(range.slice(1, 3).end(), range.position(3) + 1);
}

TEST(TokenRange, TokensBeforeAPosition) {
  const TokenRange range{3, 4, 3};  // 3, 7, 11
  for (const auto& [position, tokens] :
       {std::pair(-5, 0), {3, 0}, {4, 1}, {7, 1}, {8, 2}, {11, 2}, {12, 3}, {1000, 3}})
    EXPECT_EQ(range.before(position), tokens) << position;
  EXPECT_EQ((TokenRange{5, 1, 0}).before(9), 0);
}

TEST(TokenRanges, TheWholeSequenceIsOneRange) {
  EXPECT_EQ(whole(6), (TokenRanges{{0, 1, 6}}));
  EXPECT_EQ(whole(0), TokenRanges{});
}

TEST(TokenRanges, CountAndPositionsFollowMemoryOrder) {
  const TokenRanges ranges{{8, 1, 3}, {5, 1, 0}, {0, 3, 2}};
  EXPECT_EQ(count(ranges), 5);
  EXPECT_EQ(positions(ranges), (std::vector<Index>{8, 9, 10, 0, 3}));
  EXPECT_EQ(count({}), 0);
  EXPECT_TRUE(positions({}).empty());
}

TEST(TokenRanges, PositionsPast2To31) {
  const TokenRange range{Index{1} << 40, Index{1} << 20, 3};
  EXPECT_EQ(range.end(), (Index{1} << 40) + (Index{1} << 21) + 1);
}

}  // namespace
}  // namespace ring_attention
