// Lessons 01 and 02: what their programs do not give to a softmax: a NaN, and too few places for its probabilities.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "01_safe_softmax/safe_softmax.hpp"
#include "02_online_softmax/online_softmax.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::lesson {
namespace {

TEST(Softmax, ANaNStaysVisible) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& x : std::vector<std::vector<double>>{{nan}, {1, nan, 2}, {nan, 1, 2}, {1, 2, nan}}) {
    std::vector<double> safe(x.size()), online(x.size());
    safe_softmax<std::vector<double>, double>(x, safe);
    online_softmax<double>(x, online);
    EXPECT_TRUE(std::isnan(safe[0]));
    EXPECT_TRUE(std::isnan(online[0]));
    EXPECT_TRUE(std::isnan(online_state<double>(x).l));
  }
}

TEST(Softmax, NeedsAPlaceForEachProbability) {
  const std::vector<double> x{1, 2};
  std::vector<double> p(1);
  EXPECT_THROW((naive_softmax<std::vector<double>, double>(x, p)), Error);
  EXPECT_THROW((safe_softmax<std::vector<double>, double>(x, p)), Error);
  EXPECT_THROW(online_softmax<double>(x, p), Error);
}

}  // namespace
}  // namespace ring_attention::lesson
