// The fast engine in double: the same source as in float, against the reference and the readable engine.

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "support/gradients.hpp"
#include "support/masks.hpp"

namespace ring_attention::test {
namespace {

AttentionResult<double> forward(const Problem<double>& p, const CpuOptions& options) {
  CpuEngine<double> engine(p.what.scoring, options);
  engine.begin(p.q, whole(p.what.queries));
  engine.accumulate({p.k, p.v, whole(p.what.keys)});
  return engine.finish();
}

Gradients<double> backward(const GradientProblem<double>& problem, const CpuOptions& options) {
  const Problem<double>& p = problem.forward;
  const AttentionResult<double> result = forward(p, options);
  CpuBackward<double> engine(p.what.scoring, options);
  engine.begin({p.q, result.out, result.lse, problem.grad_out}, whole(p.what.queries));
  Gradients<double> gradients{{}, Tensor<double>(p.k.shape()), Tensor<double>(p.v.shape())};
  engine.accumulate({p.k, p.v, whole(p.what.keys)}, {gradients.k, gradients.v});
  gradients.q = engine.finish();
  return gradients;
}

TEST(CpuEngineInDouble, AgreesWithTheReferenceOnRandomProblems) {
  for_each_case(100, [](Dice& dice, Index index) {
    Case what = random_case(dice, index, 3);
    if (dice.one_in(3)) what.queries = dice.between(30, 90);
    if (dice.one_in(3)) what.keys = dice.between(30, 200);
    const auto problem = make_problem<double>(what);
    for_each_isa(
        [&](Isa isa) { EXPECT_TRUE(agrees(forward(problem, {.isa = isa}), problem)) << to_string(what); });
  });
}

TEST(CpuEngineInDouble, KnowsEveryMaskAndBias) {
  for (const NamedScoring& named : every_scoring(70, 90, 4, 0.3)) {
    SCOPED_TRACE(named.name);
    const auto problem = make_problem<double>(
        {.kv_heads = 2, .group = 2, .queries = 70, .keys = 90, .dim = 12, .scoring = named.scoring});
    for_each_isa([&](Isa isa) { EXPECT_TRUE(agrees(forward(problem, {.isa = isa}), problem)); });
  }
}

TEST(CpuBackwardInDouble, AgreesWithTheReferenceOnRandomProblems) {
  for_each_case(60, [](Dice& dice, Index index) {
    const auto problem = make_gradient_problem<double>(random_case(dice, index, 3));
    for_each_isa([&](Isa isa) {
      EXPECT_TRUE(agrees(backward(problem, {.isa = isa}), problem)) << to_string(problem.what());
    });
  });
}

TEST(CpuEngineInDouble, TheNumberOfThreadsDoesNotChangeTheBits) {
  const auto problem = make_gradient_problem<double>(
      {.kv_heads = 2, .group = 2, .queries = 130, .keys = 130, .dim = 24, .scoring = {0.2, Mask::causal()}});
  const Gradients<double> one = backward(problem, {.threads = 1});
  const Gradients<double> two = backward(problem, {.threads = 2});
  EXPECT_TRUE(bitwise_equal(one.q, two.q));
  EXPECT_TRUE(bitwise_equal(one.k, two.k));
  EXPECT_TRUE(bitwise_equal(one.v, two.v));
}

}  // namespace
}  // namespace ring_attention::test
