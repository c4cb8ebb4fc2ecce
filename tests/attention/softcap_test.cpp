// The softcap: by hand, its gradient against finite differences, and what stands inside and outside of it.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ring_attention/attention/reference.hpp"
#include "support/differences.hpp"
#include "support/gradients.hpp"
#include "support/masks.hpp"

namespace ring_attention::test {
namespace {

Case capped(Scoring scoring, std::pair<Index, Index> bias = {2, 4}) {
  scoring.softcap = 0.7;
  return {.batch = 2,
          .kv_heads = 2,
          .group = 2,
          .queries = 5,
          .keys = 6,
          .dim = 3,
          .scoring = std::move(scoring),
          .bias_batch = bias.first,
          .bias_heads = bias.second,
          .block = 4};
}

// The scale stands inside of the tanh; ALiBi and the bias stand outside.
TEST(Softcap, OfOneKeyByHand) {
  Tensor<double> q({1, 1, 1, 1}, 3.0), k({1, 1, 2, 1}, 5.0), v({1, 1, 2, 1}, 1.0), bias({1, 1, 1, 2}, 4.0);
  bias.data()[0] = -std::numeric_limits<double>::infinity();
  Scoring scoring;
  scoring.scale = 0.5;
  scoring.alibi_slopes.push_back(0.25);
  scoring.softcap = 2;
  const Reference result = reference_forward(q, k, v, scoring, whole(1), bias);
  EXPECT_NEAR(result.lse.data()[0], 2 * std::tanh(7.5 / 2) - 0.25 + 4, 1e-14);
}

TEST(Softcap, GradientsAgainstFiniteDifferences) {
  for (const auto& [name, scoring] : every_scoring(5, 6, 4, 0.6)) {
    SCOPED_TRACE(name);
    auto problem = make_gradient_problem<double>(capped(scoring));
    expect_gradients_of_the_loss(problem);
  }
}

// -inf + cap tanh(x) is -inf: the mask may be in the bias.
TEST(Softcap, LeavesABiasOfMinusInfinityAMask) {
  const Case causal = capped({0.6, Mask::causal(1)}, {0, 0});
  auto masked = make_gradient_problem<double>(causal);
  auto biased = make_gradient_problem<double>(capped({0.6}, {1, 1}));
  for (Index query = 0; query < 5; ++query)
    for (Index key = 0; key < 6; ++key)
      biased.forward.bias.view()(0, 0, query, key) =
          causal.scoring.mask.allowed(query, key) ? 0 : negative_infinity<double>;
  const Gradients<double> with = device_gradients(biased), plain = device_gradients(masked);
  EXPECT_TRUE(bitwise_equal(with.q, plain.q));
  EXPECT_TRUE(bitwise_equal(with.k, plain.k));
  EXPECT_TRUE(bitwise_equal(with.v, plain.v));
}

}  // namespace
}  // namespace ring_attention::test
