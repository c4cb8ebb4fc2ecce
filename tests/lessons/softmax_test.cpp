// Lessons 01 and 02: the softmax of one row, naive, safe and online.

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "01_safe_softmax/safe_softmax.hpp"
#include "02_online_softmax/online_softmax.hpp"
#include "ring_attention/core/error.hpp"
#include "support/rows.hpp"

namespace ring_attention::test {
namespace {

template <class T>
void softmax_naive(std::span<const T> x, std::span<T> p) {
  lesson::naive_softmax(x, p);
}
template <class T>
void softmax_safe(std::span<const T> x, std::span<T> p) {
  lesson::safe_softmax(x, p);
}
template <class T>
void softmax_online(std::span<const T> x, std::span<T> p) {
  lesson::online_softmax(x, p);
}

template <class T>
Row<T> probabilities(void (*softmax)(std::span<const T>, std::span<T>), const Row<T>& x) {
  Row<T> p(x.size(), T{-1});
  softmax(x, p);
  return p;
}

template <class T>
class Softmax : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Softmax, Types);

TYPED_TEST(Softmax, OfZeroAndLogTwoIsOneThirdAndTwoThirds) {
  const Row<TypeParam> x{0, static_cast<TypeParam>(log2)};
  const Row<TypeParam> want{TypeParam(1) / 3, TypeParam(2) / 3};
  expect_near(probabilities(softmax_naive<TypeParam>, x), want);
  expect_near(probabilities(softmax_safe<TypeParam>, x), want);
  expect_near(probabilities(softmax_online<TypeParam>, x), want);
}

TYPED_TEST(Softmax, OfEqualScoresIsUniformWhateverTheirSize) {
  for (const TypeParam score : {TypeParam(0), TypeParam(-1e4), TypeParam(1e4)}) {
    const Row<TypeParam> x(4, score);
    const Row<TypeParam> want(4, TypeParam(0.25));
    EXPECT_EQ(probabilities(softmax_safe<TypeParam>, x), want) << score;
    EXPECT_EQ(probabilities(softmax_online<TypeParam>, x), want) << score;
  }
}

TYPED_TEST(Softmax, OfOneScoreIsOne) {
  EXPECT_EQ(probabilities(softmax_safe<TypeParam>, {-1000}), Row<TypeParam>{1});
  EXPECT_EQ(probabilities(softmax_online<TypeParam>, {1000}), Row<TypeParam>{1});
}

TYPED_TEST(Softmax, NaiveOverflowsAndUnderflowsWhereTheOthersDoNot) {
  const TypeParam limit = std::log(std::numeric_limits<TypeParam>::max());  // 88.7 or 709.8
  for (const TypeParam score : {limit + 1, -2 * limit}) {
    const Row<TypeParam> x{score, score - static_cast<TypeParam>(log2)};
    const Row<TypeParam> want{TypeParam(2) / 3, TypeParam(1) / 3};
    const TypeParam spacing = limit * 8;  // the scores are rounded to multiples of about eps * limit
    EXPECT_TRUE(std::isnan(probabilities(softmax_naive<TypeParam>, x)[0])) << score;
    expect_near(probabilities(softmax_safe<TypeParam>, x), want, spacing);
    expect_near(probabilities(softmax_online<TypeParam>, x), want, spacing);
  }
}

TYPED_TEST(Softmax, OfMaskedScoresIsZeroThere) {
  const TypeParam none = negative_infinity<TypeParam>;
  EXPECT_EQ(probabilities(softmax_safe<TypeParam>, {none, 3, none}), (Row<TypeParam>{0, 1, 0}));
  EXPECT_EQ(probabilities(softmax_online<TypeParam>, {none, 3, none}), (Row<TypeParam>{0, 1, 0}));
  EXPECT_EQ(probabilities(softmax_safe<TypeParam>, {none, none}), (Row<TypeParam>{0, 0}));
  EXPECT_EQ(probabilities(softmax_online<TypeParam>, {none, none}), (Row<TypeParam>{0, 0}));
}

TYPED_TEST(Softmax, OfNothingIsNothing) {
  EXPECT_TRUE(probabilities(softmax_safe<TypeParam>, {}).empty());
  EXPECT_TRUE(probabilities(softmax_online<TypeParam>, {}).empty());
}

TYPED_TEST(Softmax, NeedsAPlaceForEachProbability) {
  const Row<TypeParam> x{1, 2};
  Row<TypeParam> p(1);
  EXPECT_THROW(softmax_naive<TypeParam>(x, p), Error);
  EXPECT_THROW(softmax_safe<TypeParam>(x, p), Error);
  EXPECT_THROW(softmax_online<TypeParam>(x, p), Error);
}

TYPED_TEST(Softmax, SafeAndOnlineAgreeAndSumToOne) {
  for_each_case(200, [](Dice& dice, Index) {
    const Row<TypeParam> x = random_row<TypeParam>(dice);
    const Row<TypeParam> p = probabilities(softmax_safe<TypeParam>, x);
    const auto length = static_cast<TypeParam>(x.size());
    expect_near(probabilities(softmax_online<TypeParam>, x), p, 8 + length);
    const bool empty = std::ranges::all_of(x, [](TypeParam s) { return s == negative_infinity<TypeParam>; });
    expect_near({std::accumulate(p.begin(), p.end(), TypeParam{0})},
                Row<TypeParam>{empty ? TypeParam{0} : TypeParam{1}}, 8 + length);
  });
}

TYPED_TEST(Softmax, AStateOfMoreScoresNormalisesAPartOfThem) {
  const Row<TypeParam> x{0, static_cast<TypeParam>(log2), static_cast<TypeParam>(log3)};  // weights 1, 2, 3
  Row<TypeParam> p(1);
  lesson::normalise(std::span(x).subspan(1, 1), lesson::online_state<TypeParam>(x), std::span(p));
  expect_near(p, {TypeParam(1) / 3});
}

TYPED_TEST(Softmax, TheStateOfARowIsTheLibrarysBitForBit) {
  for_each_case(200, [](Dice& dice, Index) {
    const Row<TypeParam> x = random_row<TypeParam>(dice), y = random_row<TypeParam>(dice);
    const auto library = [](const Row<TypeParam>& row) {
      SoftmaxState<TypeParam> state;
      for (const TypeParam score : row) state = merge(state, softmax_state(score));
      return state;
    };
    const auto a = lesson::online_state<TypeParam>(x), b = lesson::online_state<TypeParam>(y);
    EXPECT_EQ(a.m, library(x).m);
    EXPECT_EQ(a.l, library(x).l);
    const auto both = lesson::merged(a, b);
    const auto want = merge(library(x), library(y));
    EXPECT_EQ(both.m, want.m);
    EXPECT_EQ(both.l, want.l);
  });
}

TYPED_TEST(Softmax, ANaNStaysVisible) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_TRUE(std::isnan(lesson::online_state<TypeParam>(Row<TypeParam>{1, nan, 2}).l));
  EXPECT_TRUE(std::isnan(lesson::online_state<TypeParam>(Row<TypeParam>{nan}).l));
  EXPECT_TRUE(std::isnan(probabilities(softmax_safe<TypeParam>, {1, nan, 2})[0]));
  EXPECT_TRUE(std::isnan(probabilities(softmax_online<TypeParam>, {1, nan, 2})[0]));
}

}  // namespace
}  // namespace ring_attention::test
