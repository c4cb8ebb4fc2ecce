// The reference itself, against cases computed by hand.

#include "ring_attention/attention/reference.hpp"

#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/softmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/random.hpp"

namespace ring_attention::test {
namespace {

constexpr double log2 = 0.69314718055994530942;
constexpr double log3 = 1.0986122886681098;
constexpr double log5 = 1.6094379124341003;
constexpr double none = negative_infinity<double>;

Tensor<double> tensor(const Shape& shape, std::initializer_list<double> values) {
  EXPECT_EQ(shape.size(), static_cast<Index>(values.size()));
  Tensor<double> result(shape);
  std::ranges::copy(values, result.data());
  return result;
}

void expect_elements(const Tensor<double>& got, std::initializer_list<double> want) {
  ASSERT_EQ(got.size(), static_cast<Index>(want.size()));
  for (Index i = 0; i < got.size(); ++i) {
    const double expected = want.begin()[i];
    if (expected == none)
      EXPECT_EQ(got.data()[i], none) << "element " << i;
    else
      EXPECT_NEAR(got.data()[i], expected, 1e-12) << "element " << i;
  }
}

TEST(Reference, EqualScoresGiveTheMeanOfTheValues) {
  const auto q = tensor({1, 1, 1, 2}, {0, 0});
  const auto k = tensor({1, 1, 4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto v = tensor({1, 1, 4, 2}, {1, 10, 2, 20, 3, 30, 6, 60});
  const Reference result = reference_forward(q, k, v, {});
  expect_elements(result.out, {3, 30});
  expect_elements(result.lse, {2 * log2});
}

TEST(Reference, OneDominantScorePicksItsValue) {
  const auto q = tensor({1, 1, 1, 1}, {1000});
  const auto k = tensor({1, 1, 3, 1}, {0, 1, -1});
  const auto v = tensor({1, 1, 3, 1}, {5, 7, 9});
  const Reference result = reference_forward(q, k, v, {});
  expect_elements(result.out, {7});
  expect_elements(result.lse, {1000});
}

// q = (1, 2), k = (0, log 2): the rows have weights (1, 2) and (1, 4).
TEST(Reference, TwoByTwoByHand) {
  const auto q = tensor({1, 1, 2, 1}, {1, 2});
  const auto k = tensor({1, 1, 2, 1}, {0, log2});
  const auto v = tensor({1, 1, 2, 2}, {10, -1, 40, 4});  // wider than q and k
  const Reference result = reference_forward(q, k, v, {});
  EXPECT_EQ(result.out.shape(), (Shape{1, 1, 2, 2}));
  expect_elements(result.out, {30, 7 / 3.0, 34, 3});
  expect_elements(result.lse, {log3, log5});
  EXPECT_NEAR(result.max_abs_score, 2 * log2, 1e-12);
  EXPECT_EQ(result.max_abs_value, 40);
}

TEST(Reference, TwoByTwoCausal) {
  const auto q = tensor({1, 1, 2, 1}, {1, 2});
  const auto k = tensor({1, 1, 2, 1}, {0, log2});
  const auto v = tensor({1, 1, 2, 1}, {10, 40});
  const Reference result = reference_forward(q, k, v, {1, Mask::causal()});
  expect_elements(result.out, {10, 34});
  expect_elements(result.lse, {0, log5});
}

TEST(Reference, TheScaleMultipliesTheScores) {
  const auto q = tensor({1, 1, 1, 1}, {1});
  const auto k = tensor({1, 1, 2, 1}, {0, log2});
  const auto v = tensor({1, 1, 2, 1}, {10, 40});
  const Reference result = reference_forward(q, k, v, {2});
  expect_elements(result.out, {34});
  EXPECT_NEAR(result.max_abs_score, 2 * log2, 1e-12);
}

TEST(Reference, AScoreIsTheProductOverAllOfDim) {
  const auto q = tensor({1, 1, 1, 3}, {1, 2, 4});
  const auto k = tensor({1, 1, 2, 3}, {0, 0, 0, 2 * log2, log2, -log2 * 0.75});  // log2 (2 + 2 - 3) = log2
  const auto v = tensor({1, 1, 2, 3}, {3, 6, 9, 0, 0, 0});
  expect_elements(reference_forward(q, k, v, {}).out, {1, 2, 3});
}

TEST(Reference, NeighbouringQueryHeadsShareAKvHead) {
  const auto q = tensor({1, 4, 1, 1}, {1, 1, 1, 1});
  const auto k = tensor({1, 2, 1, 1}, {0, 0});
  const auto v = tensor({1, 2, 1, 1}, {5, 7});
  expect_elements(reference_forward(q, k, v, {}).out, {5, 5, 7, 7});
}

TEST(Reference, BatchesDoNotMix) {
  const auto q = tensor({2, 2, 1, 1}, {0, 0, 0, 0});
  const auto k = tensor({2, 1, 1, 1}, {0, 0});
  const auto v = tensor({2, 1, 1, 1}, {5, 7});
  expect_elements(reference_forward(q, k, v, {}).out, {5, 5, 7, 7});
}

TEST(Reference, WithFewerKeysTheFirstRowsAreFullyMasked) {
  const auto q = tensor({1, 1, 3, 1}, {1, 1, 1});
  const auto k = tensor({1, 1, 2, 1}, {0, log2});
  const auto v = tensor({1, 1, 2, 1}, {10, 40});
  const Reference result = reference_forward(q, k, v, {1, Mask::causal(2 - 3)});
  expect_elements(result.out, {0, 10, 30});
  expect_elements(result.lse, {none, 0, log3});
}

TEST(Reference, WithMoreKeysTheLastQueryIsAtTheLastKey) {
  const auto q = tensor({1, 1, 2, 1}, {0, 0});
  const auto k = tensor({1, 1, 3, 1}, {0, 0, 0});
  const auto v = tensor({1, 1, 3, 1}, {3, 6, 9});
  expect_elements(reference_forward(q, k, v, {1, Mask::causal(3 - 2)}).out, {4.5, 6});
}

TEST(Reference, AlibiMakesFarKeysSmaller) {
  const auto q = tensor({1, 2, 1, 1}, {0, 0});
  const auto k = tensor({1, 1, 2, 1}, {0, 0});
  const auto v = tensor({1, 1, 2, 1}, {10, 40});
  // The query is at key 1; the first head subtracts log 2 from key 0, so that its weights are 1 and 2.
  const Reference result = reference_forward(q, k, v, {1, Mask::causal(1), {log2, 0}});
  expect_elements(result.out, {30, 25});
  expect_elements(result.lse, {log3 - log2, log2});
}

// The scale stands inside of the tanh; ALiBi and the bias stand outside.
TEST(Reference, ASoftcapBoundsTheProductAlone) {
  const auto q = tensor({1, 1, 1, 1}, {3}), k = tensor({1, 1, 2, 1}, {5, 5}),
             v = tensor({1, 1, 2, 1}, {1, 1});
  const auto bias = tensor({1, 1, 1, 2}, {none, 4});
  Scoring scoring;
  scoring.scale = 0.5;
  scoring.alibi_slopes.push_back(0.25);
  scoring.softcap = 2;
  const Reference result = reference_forward(q, k, v, scoring, whole(1), bias);
  expect_elements(result.lse, {2 * std::tanh(7.5 / 2) - 0.25 + 4});
}

TEST(Reference, DocumentsDoNotSeeEachOther) {
  const auto q = tensor({1, 1, 3, 1}, {0, 0, 0});
  const auto v = tensor({1, 1, 3, 1}, {3, 5, 9});
  const auto documents = std::make_shared<const Documents>(std::vector<Index>{0, 1, 3});
  expect_elements(reference_forward(q, q, v, {1, {.documents = documents}}).out, {3, 7, 7});
}

TEST(Reference, WithoutKeysEveryRowIsFullyMasked) {
  const Tensor<double> q({1, 1, 2, 1}, 1.0), k(Shape{1, 1, 0, 1}), v(Shape{1, 1, 0, 1});
  const Reference result = reference_forward(q, k, v, {});
  expect_elements(result.out, {0, 0});
  expect_elements(result.lse, {none, none});
}

TEST(Reference, MaskedScoresDoNotCountForTheTolerance) {
  const auto q = tensor({1, 1, 2, 1}, {1, 1});
  const auto k = tensor({1, 1, 3, 1}, {1, -2, 1000});
  const auto v = tensor({1, 1, 3, 1}, {1, -8, 2});
  const Reference result = reference_forward(q, k, v, {1, Mask::causal()});
  EXPECT_EQ(result.max_abs_score, 2);
  EXPECT_EQ(result.max_abs_value, 8);
}

// A pair without weight and a pair that has all the weight move nothing; of two equal ones each counts by half.
TEST(Reference, OnlyWhatHasWeightCountsForTheTolerance) {
  const auto q = tensor({1, 1, 1, 1}, {1}), k = tensor({1, 1, 3, 1}, {2, -2, 2});
  const auto v = tensor({1, 1, 3, 1}, {1, -8, 3});
  const auto of_bias = [&](double second, double third) {
    return reference_forward(q, k, v, {}, whole(1), tensor({1, 1, 1, 3}, {0, second, third}), true);
  };
  const Reference one = of_bias(-1e9, -1e30), two = of_bias(-1e9, 0);
  EXPECT_EQ(one.max_abs_score, 2);
  EXPECT_EQ(one.of_lse.inputs.data()[0], 2);
  EXPECT_LT(one.of_out.roundings.data()[0], 2);  // the sum alone
  EXPECT_EQ(two.of_lse.inputs.data()[0], 2);
  EXPECT_GT(two.of_out.roundings.data()[0], 6) << "6 epsilons of each score, half of |v - out| = 1";
  EXPECT_EQ(of_bias(0, -1e9).max_abs_score, 2);
  EXPECT_EQ(reference_forward(q, tensor({1, 1, 1, 1}, {1000}), tensor({1, 1, 1, 1}, {1}), {.softcap = 50})
                .max_abs_score,
            50)
      << "the slope of a product of 20 caps is 0";
}

// Keys that are nearly equal have nearly the same rounding error, and so has the score of each: lse moves by as much, and
// its own rounding is no excuse where it is 0.
TEST(Reference, ErrorsOfEqualKeysDoNotAverageOut) {
  const Index keys = 100;
  const auto q = tensor({1, 1, 1, 1}, {-std::log(static_cast<double>(keys))});
  const Tensor<double> k({1, 1, keys, 1}, 1.0038), rounded({1, 1, keys, 1}, 1.0), v({1, 1, keys, 1}, 1.0);
  ASSERT_EQ(static_cast<float>(Bf16(1.0038F)), 1);
  const Reference want = reference_forward(q, k, v, {}, whole(1), {}, true);
  const Reference got = reference_forward(q, rounded, v, {});
  const Comparison near = judged_by_rows(compare(got.lse, want.lse, {1, 0}), got.lse, want.lse, want.of_lse,
                                         Precision::of<float>(Bf16::unit), keys);
  EXPECT_TRUE(near.ok) << describe(near);
}

TEST(Reference, AFewRowsAreTheRowsOfTheWhole) {
  Tensor<double> q({2, 2, 7, 3}), k({2, 1, 9, 3}), v({2, 1, 9, 3});
  fill_random(q.view(), {.stream = 0});
  fill_random(k.view(), {.stream = 1});
  fill_random(v.view(), {.stream = 2});
  const Scoring scoring{0.5, Mask::causal(9 - 7)};
  const Reference all = reference_forward(q, k, v, scoring);

  const TokenRanges rows{{1, 4, 2}, {6, 1, 1}};  // 1, 5, 6
  Tensor<double> some(q.shape().with_seq(3));
  fill_random(some.view(), {.stream = 0}, q.shape(), rows);
  const Reference result = reference_forward(some, k, v, scoring, rows);
  const std::vector<Index> at = positions(rows);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h)
      for (Index i = 0; i < 3; ++i) {
        const Index row = at[static_cast<std::size_t>(i)];
        EXPECT_NEAR(result.lse.view()(b, h, i), all.lse.view()(b, h, row), 1e-12);
        for (Index d = 0; d < 3; ++d)
          EXPECT_NEAR(result.out.view()(b, h, i, d), all.out.view()(b, h, row, d), 1e-12);
      }
}

TEST(Reference, ShapesThatDoNotBelongTogetherAreErrors) {
  const Shape q{2, 4, 3, 5};
  const Shape kv{2, 2, 7, 5};
  EXPECT_EQ(require_attention_shapes(q, kv, kv), 2);
  EXPECT_EQ(require_attention_shapes(q, {2, 4, 7, 5}, {2, 4, 7, 9}), 1);
  for (const Shape& other :
       {Shape{1, 2, 7, 5}, Shape{2, 3, 7, 5}, Shape{2, 8, 7, 5}, Shape{2, 2, 7, 4}, Shape{2, 0, 7, 5}})
    EXPECT_THROW((void)require_attention_shapes(q, other, other), Error) << to_string(other);
  for (const Shape& v : {Shape{2, 2, 6, 9}, Shape{2, 1, 7, 9}, Shape{1, 2, 7, 9}})
    EXPECT_THROW((void)require_attention_shapes(q, kv, v), Error) << to_string(v);
}

TEST(Reference, RowsThatAreNotThoseOfQAreAnError) {
  const Tensor<double> q({1, 1, 2, 1}), k({1, 1, 2, 1});
  EXPECT_THROW((void)reference_forward(q, k, k, {}, whole(3)), Error);
}

}  // namespace
}  // namespace ring_attention::test
