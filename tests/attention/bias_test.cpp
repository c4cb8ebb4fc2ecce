// The dense bias: shapes that broadcast, and what -inf does. (Its gradient: backward_test.cpp.)

#include "ring_attention/attention/bias.hpp"

#include <gtest/gtest.h>

#include "support/gradients.hpp"

namespace ring_attention::test {
namespace {

constexpr std::pair<Index, Index> every_broadcast[] = {{1, 1}, {1, 4}, {2, 1}, {2, 4}};  // batches, heads

Case with_bias(std::pair<Index, Index> extents, const Scoring& scoring = {0.6}) {
  return {.batch = 2,
          .kv_heads = 2,
          .group = 2,
          .queries = 5,
          .keys = 6,
          .dim = 3,
          .scoring = scoring,
          .bias_batch = extents.first,
          .bias_heads = extents.second,
          .block = 4};
}

// The reference finds the rows of a bias by bias_row() as well: here each row of it hides another key.
TEST(Bias, OfABatchAndAHeadIsItsOwn) {
  for (const auto& [batches, heads] : every_broadcast) {
    Tensor<double> bias({batches, heads, 1, 8}), q({2, 4, 1, 1}), k({2, 4, 8, 1}), v({2, 4, 8, 1});
    bias.fill(negative_infinity<double>);
    for (Index b = 0; b < batches; ++b)
      for (Index h = 0; h < heads; ++h) bias.view()(b, h, 0, b * heads + h) = 0;  // the one key that is seen
    for (Index i = 0; i < v.size(); ++i) v.data()[i] = static_cast<double>(i % 8);
    const auto got = blockwise_forward<double>(q, k, v, {}, 4, bias);
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 4; ++h)
        EXPECT_EQ(got.out.view()(b, h, 0, 0),
                  static_cast<double>((batches > 1 ? b : 0) * heads + (heads > 1 ? h : 0)))
            << "batch " << b << ", head " << h;
  }
}

TEST(Bias, OfZeroChangesNothing) {
  auto problem = make_gradient_problem<double>(with_bias({1, 1}));
  auto without = make_gradient_problem<double>(with_bias({0, 0}));
  problem.forward.bias.fill(0);
  const Gradients<double> with = device_gradients(problem), plain = device_gradients(without);
  EXPECT_TRUE(bitwise_equal(with.q, plain.q));
  EXPECT_TRUE(bitwise_equal(with.k, plain.k));
  EXPECT_TRUE(bitwise_equal(with.v, plain.v));
  EXPECT_EQ(plain.bias.size(), 0);
}

/// -inf is added to what a softcap leaves: inside of it, it would hide nothing.
void expect_a_mask_of_minus_infinity(double softcap) {
  Case causal = with_bias({0, 0}, {0.6, Mask::causal(-2)});  // the first two queries see no key
  Case of_bias = with_bias({1, 1});
  causal.scoring.softcap = of_bias.scoring.softcap = softcap;
  auto masked = make_gradient_problem<double>(causal);
  auto biased = make_gradient_problem<double>(of_bias);
  for (Index query = 0; query < 5; ++query)
    for (Index key = 0; key < 6; ++key)
      biased.forward.bias.view()(0, 0, query, key) =
          causal.scoring.mask.allowed(query, key) ? 0 : negative_infinity<double>;
  const Problem<double>&a = masked.forward, &b = biased.forward;
  const auto want = blockwise_forward<double>(a.q, a.k, a.v, a.what.scoring, 4);
  const auto got = blockwise_forward<double>(b.q, b.k, b.v, b.what.scoring, 4, b.bias);
  EXPECT_TRUE(agrees(want, masked.forward));
  EXPECT_TRUE(same_bits(got, want));
  EXPECT_EQ(got.lse.view()(0, 0, 1), negative_infinity<double>);
  const Gradients<double> with = device_gradients(biased), plain = device_gradients(masked);
  EXPECT_TRUE(bitwise_equal(with.q, plain.q));
  EXPECT_TRUE(bitwise_equal(with.k, plain.k));
  EXPECT_TRUE(bitwise_equal(with.v, plain.v));
  for (Index key = 0; key < 6; ++key) EXPECT_EQ(with.bias.view()(0, 0, 1, key), 0);
}

TEST(Bias, OfMinusInfinityIsAMask) {
  expect_a_mask_of_minus_infinity(0);
  expect_a_mask_of_minus_infinity(0.7);
}

TEST(Bias, OfAnotherShapeIsAnError) {
  const auto p = make_problem<float>(with_bias({2, 4}));
  BlockwiseEngine<float> engine({});
  for (const Shape& wrong : {Shape{3, 4, 5, 6}, Shape{2, 2, 5, 6}, Shape{2, 4, 4, 6}})
    EXPECT_THROW(engine.begin(p.q, whole(5), Tensor<float>(wrong)), Error) << to_string(wrong);
  const Tensor<float> narrow({2, 4, 5, 5});
  engine.begin(p.q, whole(5), narrow);
  EXPECT_THROW(engine.accumulate({p.k, p.v, whole(6)}), Error) << "no column for the last key";
}

}  // namespace
}  // namespace ring_attention::test
