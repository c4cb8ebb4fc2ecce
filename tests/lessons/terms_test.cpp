// The mistakes of lesson 12 in a ring of the library: each of them fails the check that the right engines pass. Some tests
// show that a weaker check passes.

#include <gtest/gtest.h>

#include "12_masks_bias_dropout/pairs.hpp"
// after the idea
#include "12_masks_bias_dropout/engine.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

using lesson_12::Mistake;
constexpr Mistake nothing_wrong = Lesson::no_mistake;

/// ALiBi, a bias, dropout and sinks, at lengths that no number of ranks divides.
GradientProblem<double> problem_with_all_terms() {
  return make_gradient_problem<double>(
      {.batch = 2,
       .group = 2,
       .queries = 11,
       .keys = 13,
       .dim = 3,
       .scoring = {0.6, Mask::causal(2), alibi_slopes(4), {0.5, -1, 0, 2}, {.probability = 0.4, .seed = 7}},
       .bias_batch = 1,
       .bias_heads = 1});
}

lesson_12::Rules rules_of(const Scoring& scoring) {
  const Mask& mask = scoring.mask;
  return {.scale = scoring.scale,
          .left = mask.left,
          .right = mask.right,
          .offset = mask.offset,
          .slopes = scoring.alibi_slopes,
          .sinks = scoring.sinks,
          .dropout = scoring.dropout};
}

/// A ring of the library with the engines of lesson 12.
TeamRun<double> run_pairs(const GradientProblem<double>& problem, int ranks, Mistake in_forward,
                          Mistake in_backward) {
  const Placement queries(problem.what().kind, problem.what().queries, ranks);
  const auto ring_of = [&](const TokenRanges& ranges) {
    int rank = 0;
    while (queries.ranges(rank) != ranges) ++rank;
    return Ring{rank, ranks};
  };
  const DeviceOf<double> device(
      [&](const Scoring& scoring, Index, const auto& q, const TokenRanges& ranges, const auto& bias) {
        auto engine = std::make_unique<lesson_12::PairEngine>(rules_of(scoring), in_forward, ring_of(ranges));
        engine->begin(q, ranges, bias);
        return engine;
      },
      [&](const Scoring& scoring, Index, const BackwardInputs<double>& inputs, const TokenRanges& ranges) {
        auto engine =
            std::make_unique<lesson_12::PairBackward>(rules_of(scoring), in_backward, ring_of(ranges));
        engine->begin(inputs, ranges);
        return engine;
      });
  return run(problem, {.rings = ranks}, device);
}

TEST(WrongTerms, AreNoticed) {
  const auto problem = problem_with_all_terms();
  EXPECT_TRUE(agrees(run_pairs(problem, 3, nothing_wrong, nothing_wrong), problem));
  for (const lesson_12::Wrong& wrong : lesson_12::every_mistake) {
    const Mistake mistake = wrong.mistake;
    // Sums over ranks: right here.
    if (mistake == "local-table" || mistake == "local-sink-gradient") continue;
    EXPECT_FALSE(agrees(run_pairs(problem, 3, mistake, mistake), problem)) << mistake;
    EXPECT_EQ(agrees(run_pairs(problem, 1, mistake, mistake), problem), wrong.needs_ranks)
        << mistake << " on one rank";
  }
}

TEST(WrongTerms, OfTheBackwardAloneAreNoticed) {
  const auto problem = problem_with_all_terms();
  for (const Mistake mistake : {"local-mask", "local-columns", "local-dropout", "seed-per-step"}) {
    const auto got = run_pairs(problem, 3, nothing_wrong, mistake);
    EXPECT_TRUE(agrees(got.attended, problem.forward)) << "a test of the forward alone passes";
    EXPECT_FALSE(agrees(got.gradients, problem)) << mistake;
  }
}

TEST(WrongTerms, AMaskOnLocalPositionsIsNoticedInEveryPlacement) {
  for (const PlacementKind kind : placement_kinds) {
    Case what{.group = 2, .queries = 16, .keys = 16, .scoring = {0.5, Mask::causal()}, .kind = kind};
    const auto problem = make_gradient_problem<double>(what);
    EXPECT_FALSE(agrees(run_pairs(problem, 4, "local-mask", "local-mask").attended, problem.forward));
    const auto wrong = run_pairs(problem, 4, nothing_wrong, "local-mask");
    EXPECT_FALSE(agrees(wrong.gradients, problem)) << name(kind);
    EXPECT_TRUE(agrees(run_pairs(problem, 1, "local-mask", "local-mask"), problem))
        << "one rank does not show it";
    what.scoring = {0.5};
    const auto unmasked = make_gradient_problem<double>(what);
    EXPECT_TRUE(agrees(run_pairs(unmasked, 4, "local-mask", "local-mask"), unmasked))
        << "nor does a problem without a mask";
  }
}

TEST(WrongTerms, DroppedPairsWithoutAGradientAreNoticed) {
  const auto problem = problem_with_all_terms();
  const auto wrong = run_pairs(problem, 2, "masks-gradient", "masks-gradient");
  EXPECT_TRUE(agrees(wrong.attended, problem.forward));
  EXPECT_FALSE(grad_q_agrees(wrong.gradients.q, problem));
  EXPECT_FALSE(grad_bias_agrees(wrong.gradients.bias, problem));
  EXPECT_TRUE(grad_v_agrees(wrong.gradients.v, problem)) << "a test of dV alone passes";
}

}  // namespace
}  // namespace ring_attention::test
