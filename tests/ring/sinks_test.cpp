// Attention sinks on a ring: each row has one, whatever the number of ranks and steps.

#include <gtest/gtest.h>

#include "support/score_mutants.hpp"

namespace ring_attention::test {
namespace {

Case with_sinks() {
  Case what{.batch = 2,
            .kv_heads = 2,
            .group = 2,
            .queries = 13,
            .keys = 11,  // under a causal mask the first queries see no key
            .dim = 3,
            .scoring = {0.6},
            .block = 3};
  what.scoring.sinks = {0.5, -1, 0, 2};
  return what;
}

template <class T>
class RingSinks : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingSinks, Types);

// ---- mutants -------------------------------------------------------------------------------------------

TYPED_TEST(RingSinks, OneForEveryStepIsNoticed) {
  using Right = EveryStepForward<TypeParam, NoChange>;
  using Wrong = EveryStepForward<TypeParam, SinkEveryStep>;
  const auto problem = make_gradient_problem<TypeParam>(with_sinks());
  EXPECT_TRUE((both_ways_agree<TypeParam, Right>(problem, 3)));
  EXPECT_FALSE((both_ways_agree<TypeParam, Wrong>(problem, 3)));
  EXPECT_TRUE((both_ways_agree<TypeParam, Wrong>(problem, 1))) << "one step does not show it";
}

// N equal sinks are one that is higher by log N.
TYPED_TEST(RingSinks, OneForEveryRankIsNoticed) {
  for (const int ranks : {1, 3}) {
    auto problem = make_gradient_problem<TypeParam>(with_sinks());
    EXPECT_TRUE(both_ways_agree(problem, ranks));
    for (double& sink : problem.forward.what.scoring.sinks)
      sink += std::log(ranks);  // the reference keeps its own
    EXPECT_EQ(both_ways_agree(problem, ranks), ranks == 1);
  }
}

TYPED_TEST(RingSinks, AGradientOfOneRankIsNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_sinks());
  for (const int ranks : {1, 3}) {
    const auto got = both_ways(problem, ranks);
    EXPECT_TRUE(grad_sinks_agree(got.gradients.sinks, problem));
    EXPECT_EQ(grad_sinks_agree(got[0].gradients.sinks, problem), ranks == 1);
  }
}

}  // namespace
}  // namespace ring_attention::test
