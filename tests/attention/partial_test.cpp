// The state (o, m, l): a commutative monoid, and two more ways to join finished pieces.

#include "ring_attention/attention/partial.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

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

template <class T>
bool equal(const Partial<T>& a, const Partial<T>& b) {
  return std::ranges::equal(a.o.view().elements(), b.o.view().elements()) &&
         std::ranges::equal(a.m.view().elements(), b.m.view().elements()) &&
         std::ranges::equal(a.l.view().elements(), b.l.view().elements());
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

/// One row of one number.
template <class T>
AttentionResult<T> piece(T out, T lse) {
  return {Tensor<T>({1, 1, 1, 1}, out), Tensor<T>({1, 1, 1, 1}, lse)};
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
  auto b = finish(Partial<TypeParam>::empty({1, 1, 2, 2}));
  const auto c = finish(Partial<TypeParam>::empty({1, 1, 3, 2}));
  EXPECT_THROW(merge_normalised(b, c), Error);
  EXPECT_THROW(merge_normalised_sigmoid(b, c), Error);
}

// ---- pieces that are already normalised ----------------------------------------------------------------

TYPED_TEST(PartialState, BothLseMergesAgreeWithTheMergeOfStates) {
  for_each_case(100, [](Dice& dice, Index) {
    const auto a = random_partial<TypeParam>(dice);
    const auto b = random_partial<TypeParam>(dice);
    const AttentionResult<TypeParam> want = finished(merged(a, b));
    auto by_lse = finished(a);
    merge_normalised(by_lse, finished(b));
    expect_near(by_lse, want);
    auto by_sigmoid = finished(a);
    merge_normalised_sigmoid(by_sigmoid, finished(b));
    expect_near(by_sigmoid, want);
  });
}

/// lse + log(1 + e^{lse_b - lse}), the form of textbooks.
template <class T>
void merge_textbook(AttentionResult<T>& into, const AttentionResult<T>& from) {
  const T lse = into.lse.view()(0, 0, 0);
  const T lse_b = from.lse.view()(0, 0, 0);
  const T merged = lse + std::log(1 + std::exp(lse_b - lse));
  T& out = into.out.view()(0, 0, 0);
  out = std::exp(lse - merged) * out + std::exp(lse_b - merged) * from.out.view()(0, 0, 0);
  into.lse.view()(0, 0, 0) = merged;
}

/// out' = out - sigmoid(lse_b - lse) (out - out_b), lse' = lse - log sigmoid(lse - lse_b), unguarded.
template <class T>
void merge_sigmoid_textbook(AttentionResult<T>& into, const AttentionResult<T>& from) {
  const T lse = into.lse.view()(0, 0, 0);
  const T lse_b = from.lse.view()(0, 0, 0);
  T& out = into.out.view()(0, 0, 0);
  out -= 1 / (1 + std::exp(lse - lse_b)) * (out - from.out.view()(0, 0, 0));
  into.lse.view()(0, 0, 0) = lse - std::log(1 / (1 + std::exp(lse_b - lse)));
}

/// Two pieces, and their merge.
template <class T>
struct Join {
  const char* name;
  T out, lse, out_b, lse_b, want_out, want_lse;
};

template <class T>
testing::AssertionResult joins(void (*merge)(AttentionResult<T>&, const AttentionResult<T>&),
                               const Join<T>& c) {
  AttentionResult<T> both = piece(c.out, c.lse);
  merge(both, piece(c.out_b, c.lse_b));
  const Tolerance tolerance = attention_tolerance<T>(2, 1000, 3);
  const Comparison out =
      compare(both.out, piece(c.want_out, T{0}).out, tolerance, {.expect_zero = c.want_out == 0});
  const Comparison lse =
      compare(both.lse, piece(c.want_lse, T{0}).out, tolerance, {.allow_negative_infinity = true});
  if (out.ok && lse.ok) return testing::AssertionSuccess() << c.name;
  return testing::AssertionFailure() << c.name << ": out " << describe(out) << "; lse " << describe(lse);
}

template <class T>
constexpr T none = negative_infinity<T>;

/// Where the textbook forms break: the second piece is larger by more than exp can hold, and -inf.
template <class T>
std::array<Join<T>, 4> hard_joins() {
  const T gap = sizeof(T) == sizeof(float) ? T{89} : T{710};
  return {{{"the second is far larger", 2, 1, 3, 1 + gap, 3, 1 + gap},
           {"nothing, then a piece", 0, none<T>, 3, 1, 3, 1},
           {"a piece, then nothing", 2, 1, 0, none<T>, 2, 1},
           {"nothing twice", 0, none<T>, 0, none<T>, 0, none<T>}}};
}

TYPED_TEST(PartialState, AllFormsJoinOrdinaryPieces) {
  const auto log3 = static_cast<TypeParam>(1.0986122886681098);
  const auto log4 = static_cast<TypeParam>(1.3862943611198906);
  const Join<TypeParam> ordinary{"weights 1 and 3", 2, 0, 6, log3, 5, log4};
  EXPECT_TRUE(joins(merge_normalised<TypeParam>, ordinary));
  EXPECT_TRUE(joins(merge_normalised_sigmoid<TypeParam>, ordinary));
  EXPECT_TRUE(joins(merge_textbook<TypeParam>, ordinary));
  EXPECT_TRUE(joins(merge_sigmoid_textbook<TypeParam>, ordinary));
}

TYPED_TEST(PartialState, LseMergesSurviveWhereTheTextbookFormsDoNot) {
  for (const auto& hard : hard_joins<TypeParam>()) {
    EXPECT_TRUE(joins(merge_normalised<TypeParam>, hard));
    EXPECT_TRUE(joins(merge_normalised_sigmoid<TypeParam>, hard));
    if (hard.lse_b == none<TypeParam> && hard.lse != none<TypeParam>)
      continue;  // this one the textbook forms can do
    EXPECT_FALSE(joins(merge_textbook<TypeParam>, hard));
    EXPECT_FALSE(joins(merge_sigmoid_textbook<TypeParam>, hard));
  }
}

TYPED_TEST(PartialState, LseMergesSurviveAFarLargerFirstPiece) {
  const Join<TypeParam> hard{"the first is far larger", 2, 900, 3, -90, 2, 900};
  EXPECT_TRUE(joins(merge_normalised<TypeParam>, hard));
  EXPECT_TRUE(joins(merge_normalised_sigmoid<TypeParam>, hard));
}

}  // namespace
}  // namespace ring_attention::test
