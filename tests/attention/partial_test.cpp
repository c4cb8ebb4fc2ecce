// The state (o, m, l): a commutative monoid.

#include "ring_attention/attention/partial.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/error.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {
namespace {

constexpr Shape shape{2, 2, 3, 4};

/// States of random keys; some rows have seen none.
template <class T>
Partial<T> random_partial(Dice& dice) {
  auto state = Partial<T>::empty(shape);
  const double spread = dice.of({1.0, 20.0, 300.0});
  for (std::size_t row = 0; row < 12; ++row) {
    if (dice.one_in(5)) continue;
    state.m.view().elements()[row] = static_cast<T>(dice.real(-spread, spread));
    state.l.view().elements()[row] = static_cast<T>(dice.real(1, 20));
    for (std::size_t d = 0; d < 4; ++d)
      state.o.view().elements()[4 * row + d] = static_cast<T>(dice.real(-9, 9));
  }
  return state;
}

template <class T>
Partial<T> clone(const Partial<T>& state) {
  return {state.o.clone(), state.m.clone(), state.l.clone()};
}

template <class T>
Partial<T> merged(const Partial<T>& a, const Partial<T>& b) {
  Partial<T> both = clone(a);
  merge(both, b);
  return both;
}

template <class T>
AttentionResult<T> finished(const Partial<T>& state) {
  return finish(clone(state));
}

/// Agreement of pieces whose lse are at most 1000 in size.
template <class T>
void expect_near(const AttentionResult<T>& got, const AttentionResult<T>& want) {
  const Tolerance tolerance = attention_tolerance<T>(8, 300, 10);
  const Comparison out = compare(got.out, want.out, tolerance);
  EXPECT_TRUE(out.ok) << "out " << describe(out);
  const Comparison lse = compare(got.lse, want.lse, tolerance, {.allow_negative_infinity = true});
  EXPECT_TRUE(lse.ok) << "lse " << describe(lse);
}

template <class T>
bool equal(const Partial<T>& a, const Partial<T>& b) {
  return std::ranges::equal(a.o.view().elements(), b.o.view().elements()) &&
         std::ranges::equal(a.m.view().elements(), b.m.view().elements()) &&
         std::ranges::equal(a.l.view().elements(), b.l.view().elements());
}

template <class T>
class PartialState : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(PartialState, Types);

TYPED_TEST(PartialState, EmptyHasSeenNoKey) {
  const AttentionResult<TypeParam> none = finish(Partial<TypeParam>::empty(shape));
  EXPECT_EQ(none.out.shape(), shape);
  EXPECT_EQ(none.lse.shape(), shape.per_row());
  EXPECT_TRUE(std::ranges::all_of(none.out.view().elements(), [](TypeParam x) { return x == 0; }));
  EXPECT_TRUE(std::ranges::all_of(none.lse.view().elements(),
                                  [](TypeParam x) { return x == negative_infinity<TypeParam>; }));
}

TYPED_TEST(PartialState, FinishDividesByTheSum) {
  auto state = Partial<TypeParam>::empty({1, 1, 1, 2});
  state.o.view()(0, 0, 0, 0) = 6;
  state.o.view()(0, 0, 0, 1) = -2;
  state.m.fill(5);
  state.l.fill(4);
  const AttentionResult<TypeParam> result = finish(std::move(state));
  EXPECT_EQ(result.out.view()(0, 0, 0, 0), TypeParam(1.5));
  EXPECT_EQ(result.out.view()(0, 0, 0, 1), TypeParam(-0.5));
  EXPECT_NEAR(result.lse.view()(0, 0, 0), 6.3862943611198906, 1e-6);  // 5 + log 4
}

TYPED_TEST(PartialState, MergeMovesBothToTheLargerMaximum) {
  const auto log2 = static_cast<TypeParam>(0.69314718055994530942);
  Partial<TypeParam> a{Tensor<TypeParam>({1, 1, 1, 1}, 10), Tensor<TypeParam>({1, 1, 1, 1}, 0),
                       Tensor<TypeParam>({1, 1, 1, 1}, 1)};
  const Partial<TypeParam> b{Tensor<TypeParam>({1, 1, 1, 1}, 40), Tensor<TypeParam>({1, 1, 1, 1}, log2),
                             Tensor<TypeParam>({1, 1, 1, 1}, 1)};
  merge(a, b);
  EXPECT_EQ(a.m.view()(0, 0, 0), log2);
  EXPECT_NEAR(a.l.view()(0, 0, 0), 1.5, 1e-6);
  EXPECT_NEAR(a.o.view()(0, 0, 0), 45, 1e-5);  // so that out = 45 / 1.5 = 30
}

TYPED_TEST(PartialState, MergeIsACommutativeMonoid) {
  for_each_case(100, [](Dice& dice, Index) {
    const auto a = random_partial<TypeParam>(dice);
    const auto b = random_partial<TypeParam>(dice);
    const auto c = random_partial<TypeParam>(dice);
    const auto identity = Partial<TypeParam>::empty(shape);
    expect_near(finished(merged(merged(a, b), c)), finished(merged(a, merged(b, c))));
    EXPECT_TRUE(equal(merged(a, b), merged(b, a)));
    EXPECT_TRUE(equal(merged(a, identity), a));
    EXPECT_TRUE(equal(merged(identity, a), a));
  });
}

TYPED_TEST(PartialState, ShapesHaveToAgree) {
  auto a = Partial<TypeParam>::empty({1, 1, 2, 2});
  EXPECT_THROW(merge(a, Partial<TypeParam>::empty({1, 1, 2, 3})), Error);
}

}  // namespace
}  // namespace ring_attention::test
