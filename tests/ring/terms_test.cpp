// A bias, dropout and sinks on a ring: wrong arguments that look right fail the check that the right ones pass. (That these
// agree: ../conformance. Wrong engines: ../lessons/terms_test.cpp.)

#include <gtest/gtest.h>

#include <tuple>

#include "ring_attention/parallel/readable_device.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

/// Lengths that no number of ranks divides.
Case without_terms() {
  return {.batch = 2,
          .kv_heads = 2,
          .group = 2,
          .queries = 11,
          .keys = 13,
          .dim = 3,
          .scoring = {0.6},
          .block = 3};
}
Case with_bias(std::pair<Index, Index> extents) {
  Case what = without_terms();
  std::tie(what.bias_batch, what.bias_heads) = extents;
  return what;
}
Case with_dropout(Index bias = 1) {
  Case what = with_bias({bias, bias});
  what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 1, .layer = 2};
  return what;
}
Case with_sinks() {
  Case what = without_terms();
  what.scoring.sinks = {0.5, -1, 0, 2};
  return what;
}

/// The check that the right terms pass on a ring of the readable engines, and wrong ones fail.
template <class T>
TeamRun<T> both_ways(const GradientProblem<T>& problem, int ranks) {
  return run(problem, {.rings = ranks}, ReadableDevice<T>({}, problem.what().block));
}
template <class T>
testing::AssertionResult both_ways_agree(const GradientProblem<T>& problem, int ranks) {
  return agrees(both_ways(problem, ranks), problem);
}

template <class T>
class RingTerms : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingTerms, Types);

// ---- bias ----------------------------------------------------------------------------------------------

// The gradients of a row's scores, the sink's among them, sum to zero; so do those of a head.
TEST(RingTermSums, GradientsOfAHeadAndItsSinkSumToZero) {
  for (const PlacementKind kind : placement_kinds) {
    Case what = with_bias({2, 4});
    what.scoring.mask = Mask::causal(2);
    what.kind = kind;
    what.scoring.sinks = {0.5, -1, 0, 1};
    const auto problem = make_gradient_problem<double>(what);
    for (const int ranks : {1, 3, 5}) {
      const Gradients<double> got = both_ways(problem, ranks).gradients;
      EXPECT_TRUE(agrees(got, problem));
      for (Index head = 0; head < 4; ++head) {
        double sum = got.sinks[static_cast<std::size_t>(head)], size = 0;
        for (Index batch = 0; batch < 2; ++batch)
          for (Index i = 0; i < Index{11} * 13; ++i) {
            sum += got.bias.view().head(batch, head)[i];
            size += std::abs(got.bias.view().head(batch, head)[i]);
          }
        EXPECT_LE(std::abs(sum), 1e-12 * size);
      }
    }
  }
}

/// The bias that ranks read who count its columns from the first key of a shard.
template <class T>
Tensor<T> with_columns_of_shards(const Tensor<T>& bias, const Placement& keys) {
  Tensor<T> local(bias.shape());
  for (int rank = 0; rank < keys.ranks(); ++rank) {
    const std::vector<Index> shard = positions(keys.ranges(rank));
    for (Index query = 0; query < bias.shape().seq; ++query)
      for (Index j = 0; j < std::ssize(shard); ++j)
        local.view()(0, 0, query, shard[static_cast<std::size_t>(j)]) = bias.view()(0, 0, query, j);
  }
  return local;
}

TYPED_TEST(RingTerms, ColumnsOfTheShardAreNoticed) {
  auto problem = make_gradient_problem<TypeParam>(with_bias({1, 1}));
  const auto right = both_ways(problem, 3);
  EXPECT_TRUE(agrees(right, problem));
  problem.forward.bias = with_columns_of_shards(problem.forward.bias, {PlacementKind::contiguous, 13, 3});
  EXPECT_FALSE(both_ways_agree(problem, 3));  // the reference keeps its own
  const auto wrong = run(problem, {.rings = 3}, CpuDevice<TypeParam>(), {.forward = &right});
  EXPECT_FALSE(grad_bias_agrees(wrong.gradients.bias, problem)) << "in the backward alone";
}

TYPED_TEST(RingTerms, ABiasTimesTheScaleIsNoticed) {
  for (const double scale : {0.6, 1.0}) {
    Case what = with_bias({1, 4});
    what.scoring.scale = scale;
    auto problem = make_gradient_problem<TypeParam>(what);
    EXPECT_TRUE(both_ways_agree(problem, 2));
    for (TypeParam& x : problem.forward.bias.view().elements())
      x *= TypeParam(scale);  // the reference keeps its own
    EXPECT_EQ(both_ways_agree(problem, 2), scale == 1) << "why the tests have a scale that is not 1";
  }
}

/// A problem whose every batch and head has the bias of this one in an array of its own.
template <class T>
GradientProblem<T> repeated(const GradientProblem<T>& problem) {
  auto whole = make_gradient_problem<T>(with_bias({2, 4}));
  for (Index batch = 0; batch < 2; ++batch)
    for (Index head = 0; head < 4; ++head)
      std::copy_n(problem.forward.bias.data(), 11 * 13, whole.forward.bias.view().head(batch, head));
  return whole;
}

TYPED_TEST(RingTerms, AGradientThatIsNotSummedOverHeadsIsNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_bias({1, 1}));
  const Gradients<TypeParam> each = both_ways(repeated(problem), 2).gradients;
  Tensor<TypeParam> last({1, 1, 11, 13}), sum({1, 1, 11, 13});
  for (Index batch = 0; batch < 2; ++batch)
    for (Index head = 0; head < 4; ++head)
      for (Index i = 0; i < sum.size(); ++i) {
        last.data()[i] = each.bias.view().head(batch, head)[i];
        sum.data()[i] += each.bias.view().head(batch, head)[i];
      }
  EXPECT_TRUE(grad_bias_agrees(sum, problem));
  EXPECT_FALSE(grad_bias_agrees(last, problem));
}

// A table of biases, one for each distance, has a gradient from the rows of all ranks.
TYPED_TEST(RingTerms, AGradientOfATableThatIsNotSummedOverRanksIsNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_bias({1, 4}));
  const auto table_gradient = [](const auto& grad_bias, const TokenRanges& rows) {
    Tensor<double> table({1, 4, 1, 24});  // distances from -10 to 12
    const std::vector<Index> position = positions(rows);
    for (Index head = 0; head < 4; ++head)
      for (std::size_t i = 0; i < position.size(); ++i)
        for (Index key = 0; key < 13; ++key)
          table.view()(0, head, 0, key - position[i] + 10) +=
              static_cast<double>(grad_bias.view()(0, head, static_cast<Index>(i), key));
    return table;
  };
  const Tensor<double> want = table_gradient(problem.want.bias, whole(11));
  const auto got = both_ways(problem, 3);
  Tensor<double> sum(want.shape()), first(want.shape());
  for (int rank = 0; rank < 3; ++rank) {
    const Tensor<double> part = table_gradient(got[rank].gradients.bias,
                                               Team{.rings = 3}.tokens(problem.what()).queries.ranges(rank));
    for (Index i = 0; i < sum.size(); ++i) sum.data()[i] += part.data()[i];
    if (rank == 0) first = part.clone();
  }
  const Tolerance tolerance{.absolute = 1e-4};
  EXPECT_TRUE(compare(sum, want, tolerance).ok);
  EXPECT_FALSE(compare(first, want, tolerance).ok);
}

// ---- dropout -------------------------------------------------------------------------------------------

// A rank that has some heads (Ulysses) and counts them from 0.
TYPED_TEST(RingTerms, AHeadThatIsCountedOnItsRankIsNoticed) {
  auto problem = make_gradient_problem<TypeParam>(with_dropout());
  EXPECT_TRUE(both_ways_agree(problem, 2));
  problem.forward.what.scoring.dropout.first_head = 2;  // the reference keeps the right one
  EXPECT_FALSE(both_ways_agree(problem, 2));
}

// ---- sinks ---------------------------------------------------------------------------------------------

// N equal sinks are one that is higher by log N.
TYPED_TEST(RingTerms, ASinkForEveryRankIsNoticed) {
  for (const int ranks : {1, 3}) {
    auto problem = make_gradient_problem<TypeParam>(with_sinks());
    EXPECT_TRUE(both_ways_agree(problem, ranks));
    for (double& sink : problem.forward.what.scoring.sinks)
      sink += std::log(ranks);  // the reference keeps its own
    EXPECT_EQ(both_ways_agree(problem, ranks), ranks == 1);
  }
}

TYPED_TEST(RingTerms, AGradientOfASinkOfOneRankIsNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(with_sinks());
  for (const int ranks : {1, 3}) {
    const auto got = both_ways(problem, ranks);
    EXPECT_TRUE(numbers_agree(got.gradients, problem));
    EXPECT_EQ(numbers_agree(got[0].gradients, problem), ranks == 1);
  }
}

}  // namespace
}  // namespace ring_attention::test
