#include "ring_attention/core/bf16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ring_attention {
namespace {

float rounded(float x) { return static_cast<float>(Bf16(x)); }

TEST(Bf16, IsAFloatWithEightSignificantBits) {
  for (const float x : {0.0F, -0.0F, 1.0F, -2.5F, 0x1.02p3F, 0x1.fep127F, 0x1p-126F, 0x1p-133F}) {
    EXPECT_EQ(rounded(x), x);
    EXPECT_EQ(std::signbit(rounded(x)), std::signbit(x));
  }
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(rounded(0x1.01p0F), 0x1.00p0F) << "a tie, down to even";
  EXPECT_EQ(rounded(0x1.03p0F), 0x1.04p0F) << "a tie, up to even";
  EXPECT_EQ(rounded(0x1.010002p0F), 0x1.02p0F);
  EXPECT_EQ(rounded(0x1.00fffep0F), 0x1.00p0F);
  EXPECT_EQ(rounded(-0x1.03p0F), -0x1.04p0F);
}

TEST(Bf16, HasARelativeErrorOfAtMostItsUnit) {
  for (float x = 1e-30F; x < 1e30F; x *= 1.37F) EXPECT_LE(std::abs(rounded(x) - x), Bf16::unit * x) << x;
}

TEST(Bf16, KeepsInfinityAndNan) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded(infinity), infinity);
  EXPECT_EQ(rounded(-infinity), -infinity);
  EXPECT_EQ(rounded(std::numeric_limits<float>::max()), infinity)
      << "nearer to 2^128 than to the largest bf16";
  for (const char* payload : {"", "1", "65535"}) EXPECT_TRUE(std::isnan(rounded(std::nanf(payload))));
}

}  // namespace
}  // namespace ring_attention
