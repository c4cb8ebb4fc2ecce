// Dropout on a ring: one mask, for every number of ranks, placement and tile.

#include <gtest/gtest.h>

#include "support/backward_mutants.hpp"
#include "support/masks.hpp"
#include "support/score_mutants.hpp"

namespace ring_attention::test {
namespace {

Case with_dropout(const Scoring& scoring = {0.6}, PlacementKind kind = PlacementKind::contiguous) {
  Case what{.batch = 2,
            .kv_heads = 2,
            .group = 2,
            .queries = 13,
            .keys = 13,
            .dim = 3,
            .scoring = scoring,
            .bias_batch = 1,
            .bias_heads = 1,
            .block = 3,
            .kind = kind};
  what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 1, .layer = 2};
  return what;
}

template <class T>
class RingDropout : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingDropout, Types);

TYPED_TEST(RingDropout, AgreesForEveryMaskPlacementAndNumberOfRanks) {
  const auto scorings = every_scoring(13, 13, 4, 0.6);
  for (const PlacementKind kind : placement_kinds)
    for (const auto& scoring : {scorings.front(), scorings[1], scorings.back()}) {
      const auto problem = make_gradient_problem<TypeParam>(with_dropout(scoring.scoring, kind));
      for (const int ranks : {1, 2, 3, 4, 5, 7}) {
        EXPECT_TRUE(both_ways_agree(problem, ranks)) << ranks;
        EXPECT_TRUE(fast_agrees(problem, ranks)) << ranks;
      }
    }
}

TYPED_TEST(RingDropout, OneRankIsTheSingleDeviceBitForBit) {
  const auto problem = make_gradient_problem<TypeParam>(with_dropout({0.6, Mask::causal()}));
  EXPECT_TRUE(same_bits(BothWays<TypeParam>(problem, 1).gradients, device_gradients(problem)));
  const BothWays<TypeParam, CpuEngine<TypeParam>, CpuBackward<TypeParam>> fast(problem, 1);
  EXPECT_TRUE(same_bits(fast.gradients, single_device_gradients(problem)));
}

/// Value j is 1 in column j and 0 elsewhere: out shows which pairs are kept.
template <class Engine, class T>
void expect_the_mask(const Problem<T>& problem, int ranks) {
  const Dropout& dropout = problem.what.scoring.dropout;
  const auto got = run_loopback<T, Engine>(problem, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const View<const T> out = got[static_cast<std::size_t>(rank)].attended.out;
    const std::vector<Index> position = positions(query_ranges(problem, rank, ranks));
    for (Index batch = 0; batch < 2; ++batch)
      for (Index head = 0; head < 4; ++head)
        for (Index i = 0; i < out.shape().seq; ++i) {
          const Index query = position[static_cast<std::size_t>(i)];
          for (Index key = 0; key < 13; ++key)
            ASSERT_EQ(out(batch, head, i, key) != 0, dropout.keeps(dropout.row(batch, head, query), key))
                << "query " << query << ", key " << key << " on " << ranks << " ranks";
        }
  }
}

TYPED_TEST(RingDropout, TheMaskIsTheFunctionOfPositionsEverywhere) {
  for (const PlacementKind kind : placement_kinds)
    for (const Index block : {1, 3, 64}) {
      Case what = with_dropout({0.1}, kind);
      what.bias_batch = what.bias_heads = 0;
      what.dim = what.keys;
      what.block = block;
      auto problem = make_problem<TypeParam>(what);
      problem.v.fill(0);
      for (Index batch = 0; batch < 2; ++batch)
        for (Index head = 0; head < 2; ++head)
          for (Index key = 0; key < 13; ++key) problem.v.view()(batch, head, key, key) = 1;
      for (const int ranks : {1, 2, 3, 5}) {
        expect_the_mask<BlockwiseEngine<TypeParam>>(problem, ranks);
        expect_the_mask<CpuEngine<TypeParam>>(problem, ranks);
      }
    }
}

// ---- mutants -------------------------------------------------------------------------------------------

template <class T, class Rules>
testing::AssertionResult rules_agree(const GradientProblem<T>& problem) {
  return ring_agrees<T, SmallEngine<T, Rules>>(problem.forward, 2);
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
  const BothWays<TypeParam, BlockwiseEngine<TypeParam>, Wrong> wrong(problem, 2);
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
using Changing = BothWays<T, EveryStepForward<T, InForward>, EveryStepBackward<T, InBackward>>;

TYPED_TEST(RingDropout, SeedsThatDependOnTheRingAreNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_dropout());
  const Changing<TypeParam, NoChange> right(problem, 3);
  EXPECT_TRUE(all_agree(right.forward, problem.forward));
  EXPECT_TRUE(agrees(right.gradients, problem));
  const Changing<TypeParam, SeedPerRank> per_rank(problem, 3);
  EXPECT_FALSE(all_agree(per_rank.forward, problem.forward));
  EXPECT_TRUE(all_agree(Changing<TypeParam, SeedPerRank>(problem, 1).forward, problem.forward))
      << "one rank does not show it";
  const Changing<TypeParam, SeedPerStep> per_step(problem, 3);
  EXPECT_FALSE(all_agree(per_step.forward, problem.forward));
}

TYPED_TEST(RingDropout, StatesReadInTheReverseOrderAreNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_dropout());
  const Changing<TypeParam, NoChange, SeedPerStepReversed<3>> reversed(problem, 3);
  EXPECT_TRUE(all_agree(reversed.forward, problem.forward)) << "a test of the forward alone passes";
  EXPECT_FALSE(agrees(reversed.gradients, problem));
}

}  // namespace
}  // namespace ring_attention::test
