// The state (m, l) of a softmax: a commutative monoid.

#include "ring_attention/attention/softmax.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <vector>

#include "support/cases.hpp"

namespace ring_attention::test {
namespace {

template <class T>
using Row = std::vector<T>;

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

/// The state of a row, merged score by score.
template <class T>
SoftmaxState<T> state_of(std::span<const T> x) {
  SoftmaxState<T> state;
  for (const T score : x) state = merge(state, softmax_state(score));
  return state;
}

template <class T>
class Softmax : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Softmax, Types);

TYPED_TEST(Softmax, TheStateOfARowIsItsMaximumAndItsSum) {
  const TypeParam of_2 = std::log(TypeParam{2});
  const auto state = state_of<TypeParam>(Row<TypeParam>{0, of_2, negative_infinity<TypeParam>});
  EXPECT_EQ(state.m, of_2);
  expect_near<TypeParam>({state.l, state.lse()}, {TypeParam(1.5), std::log(TypeParam{3})});
}

TYPED_TEST(Softmax, TheStateOfAMaskedScoreIsTheIdentity) {
  const SoftmaxState<TypeParam> identity;
  const auto masked = softmax_state(negative_infinity<TypeParam>);
  EXPECT_EQ(masked.m, identity.m);
  EXPECT_EQ(masked.l, 0);
  EXPECT_EQ(identity.lse(), negative_infinity<TypeParam>);
  EXPECT_EQ(softmax_state(TypeParam{5}).l, 1);
}

TYPED_TEST(Softmax, RescaleOfNothingIsZeroEvenToNothing) {
  EXPECT_EQ(rescale(negative_infinity<TypeParam>, TypeParam{3}), 0);
  EXPECT_EQ(rescale(negative_infinity<TypeParam>, negative_infinity<TypeParam>), 0);
  EXPECT_EQ(rescale(TypeParam{3}, TypeParam{3}), 1);
  EXPECT_EQ(rescale(TypeParam{-1e4}, TypeParam{1e4}), 0);
}

TYPED_TEST(Softmax, MergeIsACommutativeMonoid) {
  for_each_case(200, [](Dice& dice, Index) {
    const auto a = state_of<TypeParam>(random_row<TypeParam>(dice));
    const auto b = state_of<TypeParam>(random_row<TypeParam>(dice));
    const auto c = state_of<TypeParam>(random_row<TypeParam>(dice));

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
    const auto whole = state_of<TypeParam>(x);
    const auto parts = merge(state_of(std::span<const TypeParam>(x).first(cut)),
                             state_of(std::span<const TypeParam>(x).subspan(cut)));
    EXPECT_EQ(parts.m, whole.m);
    expect_near<TypeParam>({parts.l}, {whole.l}, TypeParam(8) * static_cast<TypeParam>(x.size()));
  });
}

TYPED_TEST(Softmax, ANaNStaysVisible) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_TRUE(std::isnan(state_of<TypeParam>(Row<TypeParam>{1, nan, 2}).l));
  EXPECT_TRUE(std::isnan(state_of<TypeParam>(Row<TypeParam>{nan}).l));
}

}  // namespace
}  // namespace ring_attention::test
