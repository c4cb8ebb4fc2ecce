// Fewer tokens than ranks, and one key: a rank without queries has a bias of no elements, and must take part in the
// messages of the bias all the same. Its shape, [1, 1, 0, 1], is also the shape of an array that is not there.

#include <gtest/gtest.h>

#include "support/run.hpp"

namespace ring_attention::test {
namespace {

/// The heads that ranks share: both numbers of ranks, and so no KV head has a copy.
Case few_tokens(int ulysses, Index queries, std::pair<Index, Index> bias) {
  const Index heads = ulysses == 1 ? 2 : ulysses;
  return {.batch = 2,
          .kv_heads = heads,
          .queries = queries,
          .keys = 1,
          .dim = 3,
          .scoring = {0.5},
          .bias_batch = bias.first,
          .bias_heads = bias.second == 1 ? 1 : heads};
}

void expect_right(const GradientProblem<double>& problem, const Team& team) {
  SCOPED_TRACE(to_string(team) + ": " + to_string(problem.what()));
  const auto all = run(problem, team);
  EXPECT_TRUE(agrees(all, problem));
  EXPECT_TRUE(same_bits<double>(all, run(problem, {.rings = team.rings})));
}

TEST(FewTokens, EveryPartitionWithAndWithoutABias) {
  for (int ranks = 3; ranks <= 9; ++ranks)
    for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
      if (ranks % ulysses != 0) continue;
      for (const Index queries : {1, 2})
        for (const std::pair<Index, Index>& bias :
             {std::pair<Index, Index>{0, 0}, {1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
          if (HasFailure()) return;  // a message that does not come takes its time
          const auto problem = make_gradient_problem<double>(few_tokens(ulysses, queries, bias));
          expect_right(problem, {ulysses, ranks / ulysses});
          if (ulysses == 1) expect_right(problem, {.rings = ranks, .gathers = true});
        }
    }
}

}  // namespace
}  // namespace ring_attention::test
