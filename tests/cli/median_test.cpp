#include "cli/median.hpp"

#include <gtest/gtest.h>

namespace ring_attention {
namespace {

TEST(Median, IsTheMiddleOrBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
  EXPECT_EQ(median({1, 1, 1000}), 1);
}

TEST(Median, OfNothingIsAnError) { EXPECT_THROW((void)median({}), Error); }

}  // namespace
}  // namespace ring_attention
