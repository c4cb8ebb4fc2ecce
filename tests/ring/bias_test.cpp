// The dense bias on a ring: columns are positions of the whole sequence, on any rank and in any placement.

#include <gtest/gtest.h>

#include "support/backward_mutants.hpp"
#include "support/score_mutants.hpp"

namespace ring_attention::test {
namespace {

/// Lengths that no number of ranks divides.
Case with_bias(std::pair<Index, Index> extents, const Scoring& scoring = {0.6},
               PlacementKind kind = PlacementKind::contiguous) {
  return {.batch = 2,
          .kv_heads = 2,
          .group = 2,
          .queries = 11,
          .keys = 13,
          .dim = 3,
          .scoring = scoring,
          .bias_batch = extents.first,
          .bias_heads = extents.second,
          .block = 3,
          .kind = kind};
}

template <class T>
class RingBias : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingBias, Types);

// The gradients of a row's scores, the sink's among them, sum to zero; so do those of a head.
TEST(RingBiasSums, GradientsOfAHeadAndItsSinkSumToZero) {
  for (const PlacementKind kind : placement_kinds) {
    Case what = with_bias({2, 4}, {0.6, Mask::causal(2)}, kind);
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

// ---- mutants -------------------------------------------------------------------------------------------

TYPED_TEST(RingBias, ColumnsOfTheShardAreNoticed) {
  using Forward = LocalForward<BlockwiseEngine<TypeParam>>;
  using Backward = LocalBackward<BlockwiseBackward<TypeParam>>;
  const auto problem = make_gradient_problem<TypeParam>(with_bias({1, 1}));
  EXPECT_TRUE((both_ways_agree(problem, 3)));
  EXPECT_FALSE((both_ways_agree<TypeParam, Forward, Backward>(problem, 3)));
  EXPECT_TRUE((both_ways_agree<TypeParam, Forward, Backward>(problem, 1))) << "one rank does not show it";
  const auto wrong = both_ways<TypeParam, BlockwiseEngine<TypeParam>, Backward>(problem, 3);
  EXPECT_FALSE(grad_bias_agrees(wrong.gradients.bias, problem)) << "in the backward alone";
}

TYPED_TEST(RingBias, ABiasTimesTheScaleIsNoticed) {
  for (const double scale : {0.6, 1.0}) {
    auto problem = make_gradient_problem<TypeParam>(with_bias({1, 4}, {scale}));
    EXPECT_TRUE(both_ways_agree(problem, 2));
    for (TypeParam& x : problem.forward.bias.view().elements())
      x *= TypeParam(scale);  // the reference keeps its own
    EXPECT_EQ(both_ways_agree(problem, 2), scale == 1) << "why the tests have a scale that is not 1";
  }
}

/// The same bias for every head and batch, as an array of its own for each.
template <class T>
GradientProblem<T> repeated(const GradientProblem<T>& problem) {
  auto whole = make_gradient_problem<T>(with_bias({2, 4}));
  for (Index batch = 0; batch < 2; ++batch)
    for (Index head = 0; head < 4; ++head)
      std::copy_n(problem.forward.bias.data(), 11 * 13, whole.forward.bias.view().head(batch, head));
  return whole;
}

TYPED_TEST(RingBias, AGradientThatIsNotSummedOverHeadsIsNoticed) {
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
TYPED_TEST(RingBias, AGradientOfATableThatIsNotSummedOverRanksIsNoticed) {
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

}  // namespace
}  // namespace ring_attention::test
