// Dropout on a ring: wrong variants that look right fail the check that the right one passes.

#include <gtest/gtest.h>

#include "support/backward_mutants.hpp"
#include "support/score_mutants.hpp"

namespace ring_attention::test {
namespace {

Case with_dropout() {
  Case what{.batch = 2,
            .kv_heads = 2,
            .group = 2,
            .queries = 13,
            .keys = 13,
            .dim = 3,
            .scoring = {0.6},
            .bias_batch = 1,
            .bias_heads = 1,
            .block = 3};
  what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 1, .layer = 2};
  return what;
}

template <class T>
class RingDropout : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingDropout, Types);

// ---- mutants -------------------------------------------------------------------------------------------

template <class T, class Rules>
testing::AssertionResult rules_agree(const GradientProblem<T>& problem) {
  return agrees(run(problem.forward, {.rings = 2}, device_of<T, SmallEngine<T, Rules>>(problem.what().block)),
                problem.forward);
}

TYPED_TEST(RingDropout, WrongPlacesAndFactorsAreNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_dropout());
  EXPECT_TRUE((rules_agree<TypeParam, RightRules>(problem)));
  EXPECT_FALSE((rules_agree<TypeParam, DropsBeforeSoftmax>(problem)));
  EXPECT_FALSE((rules_agree<TypeParam, DropsTheSum>(problem)));
  EXPECT_FALSE((rules_agree<TypeParam, ScalesTwice>(problem)));
  EXPECT_FALSE((rules_agree<TypeParam, NoScale>(problem)));
}

TYPED_TEST(RingDropout, DroppedPairsWithoutAGradientAreNoticed) {
  using Wrong = MasksGradientOfScores<TypeParam>;
  const auto problem = make_gradient_problem<TypeParam>(with_dropout());
  const auto wrong = both_ways<TypeParam, BlockwiseEngine<TypeParam>, Wrong>(problem, 2);
  EXPECT_FALSE(agrees(wrong.gradients, problem));
  EXPECT_FALSE(grad_q_agrees(wrong.gradients.q, problem));
  EXPECT_FALSE(grad_bias_agrees(wrong.gradients.bias, problem));
  EXPECT_TRUE(grad_v_agrees(wrong.gradients.v, problem)) << "a test of dV alone passes";
}

TYPED_TEST(RingDropout, PositionsOfTheShardAreNoticed) {
  using Forward = LocalForward<BlockwiseEngine<TypeParam>>;
  using Backward = LocalBackward<BlockwiseBackward<TypeParam>>;
  Case what = with_dropout();
  what.bias_batch = what.bias_heads = 0;
  const auto problem = make_gradient_problem<TypeParam>(what);
  EXPECT_TRUE((both_ways_agree(problem, 3)));
  EXPECT_FALSE((both_ways_agree<TypeParam, Forward, Backward>(problem, 3)));
  EXPECT_TRUE((both_ways_agree<TypeParam, Forward, Backward>(problem, 1))) << "one rank does not show it";
}

// A rank that has some heads (Ulysses) and counts them from 0.
TYPED_TEST(RingDropout, AHeadThatIsCountedOnItsRankIsNoticed) {
  auto problem = make_gradient_problem<TypeParam>(with_dropout());
  EXPECT_TRUE(both_ways_agree(problem, 2));
  problem.forward.what.scoring.dropout.first_head = 2;  // the reference keeps the right one
  EXPECT_FALSE(both_ways_agree(problem, 2));
}

template <class T, class InForward, class InBackward = InForward>
TeamRun<T> changing(const GradientProblem<T>& problem, int ranks) {
  return both_ways<T, EveryStepForward<T, InForward>, EveryStepBackward<T, InBackward>>(problem, ranks);
}

TYPED_TEST(RingDropout, SeedsThatDependOnTheRingAreNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_dropout());
  const auto right = changing<TypeParam, NoChange>(problem, 3);
  EXPECT_TRUE(agrees(right.attended, problem.forward));
  EXPECT_TRUE(agrees(right.gradients, problem));
  const auto per_rank = changing<TypeParam, SeedPerRank>(problem, 3);
  EXPECT_FALSE(agrees(per_rank.attended, problem.forward));
  EXPECT_TRUE(agrees(changing<TypeParam, SeedPerRank>(problem, 1).attended, problem.forward))
      << "one rank does not show it";
  const auto per_step = changing<TypeParam, SeedPerStep>(problem, 3);
  EXPECT_FALSE(agrees(per_step.attended, problem.forward));
}

TYPED_TEST(RingDropout, StatesReadInTheReverseOrderAreNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_dropout());
  const auto reversed = changing<TypeParam, NoChange, SeedPerStepReversed<3>>(problem, 3);
  EXPECT_TRUE(agrees(reversed.attended, problem.forward)) << "a test of the forward alone passes";
  EXPECT_FALSE(agrees(reversed.gradients, problem));
}

}  // namespace
}  // namespace ring_attention::test
