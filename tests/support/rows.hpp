/// \file
/// Rows of scores, and when two rows are equal but for rounding.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ring_attention/attention/softmax.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {

template <class T>
using Row = std::vector<T>;

inline constexpr double log2 = 0.69314718055994530942;
inline constexpr double log3 = 1.0986122886681098;

template <class T>
void expect_near(const Row<T>& got, const Row<T>& want, T factor = 8) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], factor * std::numeric_limits<T>::epsilon()) << "at " << i;
}

/// Up to 40 scores, some of them masked.
template <class T>
Row<T> random_row(Dice& dice) {
  Row<T> x(static_cast<std::size_t>(dice.between(1, 40)));
  const double spread = dice.of({1.0, 20.0, 300.0});
  for (T& score : x)
    score = dice.one_in(6) ? negative_infinity<T> : static_cast<T>(dice.real(-spread, spread));
  return x;
}

}  // namespace ring_attention::test
