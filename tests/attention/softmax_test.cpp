// The state (m, l) of a softmax: a commutative monoid.

#include "ring_attention/attention/softmax.hpp"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "support/rows.hpp"

namespace ring_attention::test {
namespace {

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
  const Row<TypeParam> x{0, static_cast<TypeParam>(log2), negative_infinity<TypeParam>};
  const auto state = state_of<TypeParam>(x);
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
