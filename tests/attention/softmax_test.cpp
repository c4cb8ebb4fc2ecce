// One row: naive, safe and online softmax, and the state (m, l) that the last one carries.

#include "ring_attention/attention/softmax.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {
namespace {

template <class T>
using Row = std::vector<T>;

constexpr double log2 = 0.69314718055994530942;
constexpr double log3 = 1.0986122886681098;

template <class T>
Row<T> probabilities(void (*softmax)(std::span<const T>, std::span<T>), const Row<T>& x) {
  Row<T> p(x.size(), T{-1});
  softmax(x, p);
  return p;
}

template <class T>
void expect_near(const Row<T>& got, const Row<T>& want, T factor = 8) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], factor * std::numeric_limits<T>::epsilon()) << "at " << i;
}

template <class T>
Row<T> random_row(Dice& dice) {
  Row<T> x(static_cast<std::size_t>(dice.between(1, 40)));
  const double spread = dice.of({1.0, 20.0, 300.0});
  for (T& score : x)
    score = dice.one_in(6) ? negative_infinity<T> : static_cast<T>(dice.real(-spread, spread));
  return x;
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

TYPED_TEST(Softmax, NeedsAnOutputOfTheSameLength) {
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

TYPED_TEST(Softmax, TheStateOfARowIsItsMaximumAndItsSum) {
  const Row<TypeParam> x{0, static_cast<TypeParam>(log2), negative_infinity<TypeParam>};
  const auto state = online_state<TypeParam>(x);
  EXPECT_EQ(state.m, static_cast<TypeParam>(log2));
  expect_near<TypeParam>({state.l, state.lse()}, {TypeParam(1.5), static_cast<TypeParam>(log3)});
}

TYPED_TEST(Softmax, TheStateOfAMaskedScoreIsTheIdentity) {
  const SoftmaxState<TypeParam> identity;
  const auto masked = softmax_state(negative_infinity<TypeParam>);
  EXPECT_EQ(masked.m, identity.m);
  EXPECT_EQ(masked.l, 0);
  EXPECT_EQ(identity.lse(), negative_infinity<TypeParam>);
  EXPECT_EQ(softmax_state(TypeParam{5}).l, 1);
}

TYPED_TEST(Softmax, AStateOfMoreScoresNormalisesAPartOfThem) {
  const Row<TypeParam> x{0, static_cast<TypeParam>(log2), static_cast<TypeParam>(log3)};  // weights 1, 2, 3
  Row<TypeParam> p(1);
  normalise<TypeParam>(std::span(x).subspan(1, 1), online_state<TypeParam>(x), p);
  expect_near(p, {TypeParam(1) / 3});
}

// ---- rescale and merge ---------------------------------------------------------------------------------

TYPED_TEST(Softmax, RescaleOfNothingIsZeroEvenToNothing) {
  EXPECT_EQ(rescale(negative_infinity<TypeParam>, TypeParam{3}), 0);
  EXPECT_EQ(rescale(negative_infinity<TypeParam>, negative_infinity<TypeParam>), 0);
  EXPECT_EQ(rescale(TypeParam{3}, TypeParam{3}), 1);
  EXPECT_EQ(rescale(TypeParam{-1e4}, TypeParam{1e4}), 0);
}

TYPED_TEST(Softmax, MergeIsACommutativeMonoid) {
  for_each_case(200, [](Dice& dice, Index) {
    const auto a = online_state<TypeParam>(random_row<TypeParam>(dice));
    const auto b = online_state<TypeParam>(random_row<TypeParam>(dice));
    const auto c = online_state<TypeParam>(random_row<TypeParam>(dice));

    const auto left = merge(merge(a, b), c);
    const auto right = merge(a, merge(b, c));
    EXPECT_EQ(left.m, right.m);
    expect_near<TypeParam>({left.l / std::max<TypeParam>(1, right.l)},
                           {right.l / std::max<TypeParam>(1, right.l)});

    const auto ab = merge(a, b);
    const auto ba = merge(b, a);
    EXPECT_EQ(ab.m, ba.m);
    EXPECT_EQ(ab.l, ba.l);

    for (const auto& same : {merge(a, {}), merge({}, a)}) {
      EXPECT_EQ(same.m, a.m);
      EXPECT_EQ(same.l, a.l);
    }
  });
}

TYPED_TEST(Softmax, MergeOfPartsIsTheStateOfTheWhole) {
  for_each_case(200, [](Dice& dice, Index) {
    const Row<TypeParam> x = random_row<TypeParam>(dice);
    const auto cut = static_cast<std::size_t>(dice.between(0, static_cast<Index>(x.size())));
    const auto whole = online_state<TypeParam>(x);
    const auto parts = merge(online_state(std::span<const TypeParam>(x).first(cut)),
                             online_state(std::span<const TypeParam>(x).subspan(cut)));
    EXPECT_EQ(parts.m, whole.m);
    expect_near<TypeParam>({parts.l}, {whole.l}, TypeParam(8) * static_cast<TypeParam>(x.size()));
  });
}

TYPED_TEST(Softmax, ANaNStaysVisible) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_TRUE(std::isnan(online_state<TypeParam>(Row<TypeParam>{1, nan, 2}).l));
  EXPECT_TRUE(std::isnan(online_state<TypeParam>(Row<TypeParam>{nan}).l));
  EXPECT_TRUE(std::isnan(probabilities(softmax_safe<TypeParam>, {1, nan, 2})[0]));
  EXPECT_TRUE(std::isnan(probabilities(softmax_online<TypeParam>, {1, nan, 2})[0]));
}

}  // namespace
}  // namespace ring_attention::test
