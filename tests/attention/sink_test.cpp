// Attention sinks: one more logit a head, without a value.

#include "ring_attention/attention/sink.hpp"
#include "ring_attention/attention/blockwise_backward.hpp"

#include <gtest/gtest.h>

#include "ring_attention/cpu/engine.hpp"
#include "support/gradients.hpp"

namespace ring_attention::test {
namespace {

Case with_sinks(const Scoring& scoring, std::vector<double> sinks) {
  Case what{.batch = 2, .kv_heads = 2, .queries = 5, .keys = 6, .dim = 3, .scoring = scoring, .block = 4};
  what.scoring.sinks = std::move(sinks);
  return what;
}

// A sink is a key with the score `sink` and the value 0.
TEST(Sinks, AreAKeyWithoutAValue) {
  const double sink = 0.3;
  Tensor<double> q({1, 1, 1, 1}, 1.0), k({1, 1, 1, 1}, 0.5), v({1, 1, 1, 1}, 4.0),
      grad_out({1, 1, 1, 1}, 1.0);
  Scoring scoring;
  scoring.sinks = {sink};
  const auto got = blockwise_forward<double>(q, k, v, scoring);
  const double l = std::exp(0.5) + std::exp(sink);
  EXPECT_NEAR(got.out.data()[0], 4 * std::exp(0.5) / l, 1e-15);
  EXPECT_NEAR(got.lse.data()[0], std::log(l), 1e-15);
  const auto gradients = blockwise_backward<double>({q, got.out, got.lse, grad_out}, k, v, scoring);
  EXPECT_NEAR(gradients.sinks[0], -std::exp(sink) / l * got.out.data()[0], 1e-15);
}

template <class T>
class SinksIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(SinksIn, Types);

TYPED_TEST(SinksIn, ARowThatSeesNoKeyHasTheSinkAsLse) {
  const auto problem = make_gradient_problem<TypeParam>(with_sinks({0.6, Mask::causal(-2)}, {0.75, -1.5}));
  const Problem<TypeParam>& p = problem.forward;
  for (const bool fast : {false, true}) {
    const auto got = fast ? attention_forward<TypeParam>(p.q, p.k, p.v, p.what.scoring)
                          : blockwise_forward<TypeParam>(p.q, p.k, p.v, p.what.scoring, 4);
    EXPECT_TRUE(agrees(got, p));
    for (Index head = 0; head < 2; ++head)
      for (Index row = 0; row < 2; ++row) {
        EXPECT_EQ(got.lse.view()(1, head, row),
                  TypeParam(p.what.scoring.sinks[static_cast<std::size_t>(head)]));
        for (const TypeParam x : got.out.view().row(1, head, row)) EXPECT_EQ(x, 0);
      }
  }
  EXPECT_TRUE(agrees(device_gradients(problem), problem));
}

TYPED_TEST(SinksIn, OfMinusInfinityAreNone) {
  const TypeParam nothing = negative_infinity<TypeParam>;
  const auto with = make_gradient_problem<TypeParam>(with_sinks({0.6, Mask::causal(-2)}, {nothing, nothing}));
  auto without = make_gradient_problem<TypeParam>(with_sinks({0.6, Mask::causal(-2)}, {}));
  const Gradients<TypeParam> got = device_gradients(with);
  EXPECT_EQ(got.sinks, (std::vector<double>{0, 0}));
  EXPECT_TRUE(bitwise_equal(got.q, device_gradients(without).q));
}

TYPED_TEST(SinksIn, OneForEachHeadOrNone) {
  const auto problem = make_problem<TypeParam>(with_sinks({}, {}));
  Scoring one;
  one.sinks = {0.5};
  EXPECT_THROW((void)blockwise_forward<TypeParam>(problem.q, problem.k, problem.v, one), Error);
}

}  // namespace
}  // namespace ring_attention::test
