// Every step of the ladder against the reference, by the same tests.

#include "03_blockwise_attention/ladder/ladder.hpp"

#include <gtest/gtest.h>

#include "ring_attention/core/error.hpp"
#include "support/masks.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

AttentionResult<float> attended(const NamedLadderStep& step, const Problem<float>& problem, int threads = 1) {
  return step.attend(problem.q, problem.k, problem.v, problem.what.scoring, threads);
}

void expect_agreement(const Case& what) {
  const auto problem = make_problem<float>(what);
  for (const NamedLadderStep& step : ladder)
    EXPECT_TRUE(agrees(attended(step, problem), problem)) << step.name;
}

TEST(Ladder, AgreesWithTheReferenceOnRandomProblems) {
  for_each_case(150, [](Dice& dice, Index index) {
    Case what = random_case(dice, index, 3);
    if (dice.one_in(3)) what.queries = dice.between(60, 200);
    if (dice.one_in(3)) what.keys = dice.between(60, 300);
    expect_agreement(what);
  });
}

TEST(Ladder, TakesAnyHeadDim) {
  for (Index dim = 1; dim <= 256; dim += dim < 20 ? 1 : 59)
    expect_agreement({.group = 2, .queries = 19, .keys = 23, .dim = dim, .scoring = {0.2, Mask::causal(4)}});
}

TEST(Ladder, TakesAnyLengths) {
  for (const Index queries : {1, 3, 63, 64, 65, 127, 129})
    for (const Index keys : {1, 3, 5, 63, 64, 65, 127, 129, 131})
      expect_agreement(
          {.queries = queries, .keys = keys, .dim = 20, .scoring = {0.3, Mask::causal(keys - queries)}});
}

TEST(Ladder, KnowsEveryMaskAndBias) {
  for (const auto& [queries, keys] : {std::pair<Index, Index>{150, 150}, {70, 130}, {130, 70}})
    for (const NamedScoring& named : every_scoring(queries, keys, 4, 0.3)) {
      SCOPED_TRACE(named.name);
      expect_agreement({.group = 2, .queries = queries, .keys = keys, .dim = 12, .scoring = named.scoring});
    }
}

TEST(Ladder, LogitsInTheThousandsAreFine) {
  expect_agreement({.queries = 140, .keys = 140, .dim = 16, .spike_every = 3});
}

TEST(Ladder, FullyMaskedRowsAreZeroAndMinusInfinity) {
  const auto problem =
      make_problem<float>({.queries = 200, .keys = 150, .scoring = {1, Mask::causal(150 - 200)}});
  for (const NamedLadderStep& step : ladder) {
    SCOPED_TRACE(step.name);
    const auto got = attended(step, problem);
    EXPECT_TRUE(agrees(got, problem));
    for (Index row = 0; row < 50; ++row) {
      EXPECT_EQ(got.lse.view()(0, 1, row), negative_infinity<float>);
      for (const float x : got.out.view().row(0, 1, row)) EXPECT_EQ(x, 0);
    }
  }
}

TEST(Ladder, TheBitsDoNotDependOnTheThreads) {
  const auto problem = make_problem<float>(
      {.batch = 2, .group = 2, .queries = 200, .keys = 200, .dim = 16, .scoring = {0.25, Mask::causal()}});
  for (const NamedLadderStep& step : ladder)
    for (const int threads : {2, 5})
      EXPECT_TRUE(same_bits(attended(step, problem, threads), attended(step, problem))) << step.name;
}

TEST(Ladder, ShapesThatDoNotBelongTogetherAreErrors) {
  const Tensor<float> q({1, 3, 8, 4}), k({1, 2, 8, 4});
  for (const NamedLadderStep& step : ladder) {
    SCOPED_TRACE(step.name);
    EXPECT_THROW(static_cast<void>(step.attend(q, k, k, Scoring{}, 1)), Error);
  }
}

}  // namespace
}  // namespace ring_attention::test
