// Lesson 02: two ways to merge results that are already normalised.

#include "02_online_softmax/lse_forms.hpp"

#include <gtest/gtest.h>

#include <array>

#include "support/partials.hpp"

namespace ring_attention::test {
namespace {

using lesson::Result;

/// Every number of `into` merged with the same number of `piece`.
template <class T, Result<T> (*form)(const Result<T>&, const Result<T>&)>
void merge_all(AttentionResult<T>& into, const AttentionResult<T>& piece) {
  const Index dim = into.out.shape().dim;
  for (Index row = 0; row < into.lse.size(); ++row) {
    const Result<T> before{0, into.lse.data()[row]}, more{0, piece.lse.data()[row]};
    for (Index i = row * dim; i < (row + 1) * dim; ++i)
      into.out.data()[i] = form({into.out.data()[i], before.lse}, {piece.out.data()[i], more.lse}).out;
    into.lse.data()[row] = form(before, more).lse;
  }
}
template <class T>
constexpr auto merge_log1p = merge_all<T, lesson::log1p_form<T>>;
template <class T>
constexpr auto merge_sigmoid = merge_all<T, lesson::sigmoid_form<T>>;

/// One row of one number.
template <class T>
AttentionResult<T> piece(T out, T lse) {
  return {Tensor<T>({1, 1, 1, 1}, out), Tensor<T>({1, 1, 1, 1}, lse)};
}

template <class T>
class LseForms : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(LseForms, Types);

TYPED_TEST(LseForms, BothLseMergesAgreeWithTheMergeOfStates) {
  for_each_case(100, [](Dice& dice, Index) {
    const auto a = random_partial<TypeParam>(dice);
    const auto b = random_partial<TypeParam>(dice);
    const AttentionResult<TypeParam> want = finished(merged(a, b));
    auto by_lse = finished(a);
    merge_log1p<TypeParam>(by_lse, finished(b));
    expect_near(by_lse, want);
    auto by_sigmoid = finished(a);
    merge_sigmoid<TypeParam>(by_sigmoid, finished(b));
    expect_near(by_sigmoid, want);
  });
}

/// lse + log(1 + e^{lse_b - lse}), as textbooks have it.
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

/// Two pieces, and what they are together.
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

TYPED_TEST(LseForms, AllFormsJoinOrdinaryPieces) {
  const auto log3 = static_cast<TypeParam>(1.0986122886681098);
  const auto log4 = static_cast<TypeParam>(1.3862943611198906);
  const Join<TypeParam> ordinary{"weights 1 and 3", 2, 0, 6, log3, 5, log4};
  EXPECT_TRUE(joins(merge_log1p<TypeParam>, ordinary));
  EXPECT_TRUE(joins(merge_sigmoid<TypeParam>, ordinary));
  EXPECT_TRUE(joins(merge_textbook<TypeParam>, ordinary));
  EXPECT_TRUE(joins(merge_sigmoid_textbook<TypeParam>, ordinary));
}

TYPED_TEST(LseForms, LseMergesSurviveWhereTheTextbookFormsDoNot) {
  for (const auto& hard : hard_joins<TypeParam>()) {
    EXPECT_TRUE(joins(merge_log1p<TypeParam>, hard));
    EXPECT_TRUE(joins(merge_sigmoid<TypeParam>, hard));
    if (hard.lse_b == none<TypeParam> && hard.lse != none<TypeParam>) continue;  // the one they can do
    EXPECT_FALSE(joins(merge_textbook<TypeParam>, hard));
    EXPECT_FALSE(joins(merge_sigmoid_textbook<TypeParam>, hard));
  }
}

TYPED_TEST(LseForms, LseMergesSurviveAFarLargerFirstPiece) {
  const Join<TypeParam> hard{"the first is far larger", 2, 900, 3, -90, 2, 900};
  EXPECT_TRUE(joins(merge_log1p<TypeParam>, hard));
  EXPECT_TRUE(joins(merge_sigmoid<TypeParam>, hard));
}

}  // namespace
}  // namespace ring_attention::test
