// Wrong backwards that look right: the check that passes for the right one fails for each of them. Some tests show
// that a weaker check passes.

#include <gtest/gtest.h>

#include "support/backward_mutants.hpp"
#include "support/mutants.hpp"

namespace ring_attention::test {
namespace {

/// The backward of a ring after this forward.
template <class T>
TeamRun<T> backward_of(const GradientProblem<T>& problem, const TeamRun<T>& forward,
                       const MakeLinks& links = thread_links) {
  return run(problem, {.rings = static_cast<int>(forward.ranks.size())}, CpuDevice<T>(),
             {.links = links, .forward = &forward});
}

/// A right forward, and a backward with this transport.
template <class T, class Link>
TeamRun<T> with_transport(const GradientProblem<T>& problem, int ranks) {
  return backward_of(problem, run(problem.forward, {.rings = ranks}), links_with<Link>);
}

template <class T, class Link>
testing::AssertionResult transport_agrees(const GradientProblem<T>& problem, int ranks) {
  return agrees(with_transport<T, Link>(problem, ranks), problem);
}

/// The sum over all keys, for each batch, head and column: a checksum.
template <class T>
Tensor<double> column_sums(const Tensor<T>& array) {
  Tensor<double> sums(array.shape().with_seq(1));
  for (Index b = 0; b < array.shape().batch; ++b)
    for (Index h = 0; h < array.shape().heads; ++h)
      for (Index s = 0; s < array.shape().seq; ++s)
        for (Index d = 0; d < array.shape().dim; ++d)
          sums.view()(b, h, 0, d) += static_cast<double>(array.view()(b, h, s, d));
  return sums;
}

template <class T>
testing::AssertionResult checksums_agree(const Gradients<T>& got, const GradientProblem<T>& problem) {
  const double tolerance = sizeof(T) == sizeof(float) ? 1e-4 : 1e-12;
  // The rows of dS sum to zero, so those of dK nearly do: absolute. A sum of dV is a sum of dO.
  const Comparison k = compare(column_sums(got.k), column_sums(problem.want.k), {.absolute = tolerance});
  if (!k.ok) return testing::AssertionFailure() << "dk " << describe(k);
  const Comparison v = compare(column_sums(got.v), column_sums(problem.want.v), {.absolute = tolerance});
  if (!v.ok) return testing::AssertionFailure() << "dv " << describe(v);
  return testing::AssertionSuccess();
}

template <class T>
class BackwardMutant : public testing::Test {
 protected:
  /// 16 tokens, so that shards of 2 and 4 ranks are of equal length.
  static Case sixteen(const Scoring& scoring = {0.5}) {
    return {.group = 2, .queries = 16, .keys = 16, .scoring = scoring};
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(BackwardMutant, Types);

const Scoring causal_half{0.5, Mask::causal()};

// ---- ring ----------------------------------------------------------------------------------------------

TYPED_TEST(BackwardMutant, GradientsThatStayLocalAreNoticed) {
  for (const Scoring& scoring : {Scoring{0.5}, causal_half}) {
    const auto problem = make_gradient_problem<TypeParam>(this->sixteen(scoring));
    EXPECT_TRUE((transport_agrees<TypeParam, LoopbackTransport>(problem, 4)));
    EXPECT_FALSE((transport_agrees<TypeParam, LocalGradients>(problem, 4)));

    const Gradients<TypeParam> wrong = with_transport<TypeParam, LocalGradients>(problem, 4).gradients;
    EXPECT_FALSE(grad_k_agrees(wrong.k, problem));
    EXPECT_FALSE(grad_v_agrees(wrong.v, problem));
    EXPECT_TRUE(grad_q_agrees(wrong.q, problem)) << "a test of dQ alone passes";
    EXPECT_TRUE(checksums_agree(wrong, problem)) << "so does a checksum over all keys";
  }
}

TYPED_TEST(BackwardMutant, GradientsThatStayLocalPassOnOneRank) {
  EXPECT_TRUE(
      (transport_agrees<TypeParam, LocalGradients>(make_gradient_problem<TypeParam>(this->sixteen()), 1)));
}

TYPED_TEST(BackwardMutant, GradientsThatStopShortOfTheirOwnerAreNoticed) {
  const auto problem = make_gradient_problem<TypeParam>(this->sixteen(causal_half));
  for (const int ranks : {2, 4, 8}) {
    EXPECT_TRUE((transport_agrees<TypeParam, LoopbackTransport>(problem, ranks)));
    EXPECT_FALSE((transport_agrees<TypeParam, NotReturned>(problem, ranks))) << ranks;
  }
  const auto wrong = with_transport<TypeParam, NotReturned>(problem, 4);
  EXPECT_TRUE(grad_q_agrees(wrong.gradients.q, problem)) << "a test of dQ alone passes";
  EXPECT_TRUE(checksums_agree(wrong.gradients, problem))
      << "so does a checksum: all is there, one rank further";
  EXPECT_FALSE(sent_what_it_should(wrong[0], problem.what(), {.rings = 4}, 0)) << "a message is missing";
}

TYPED_TEST(BackwardMutant, StaleKeysAndValuesAreNoticed) {
  for (const Scoring& scoring : {Scoring{0.5}, causal_half}) {
    const auto problem = make_gradient_problem<TypeParam>(this->sixteen(scoring));
    for (const int ranks : {2, 4, 8}) {
      EXPECT_TRUE((transport_agrees<TypeParam, LoopbackTransport>(problem, ranks)));
      EXPECT_FALSE((transport_agrees<TypeParam, StaleKeysAndValues>(problem, ranks))) << ranks;
    }
  }
}

// Why a count of messages and bytes is not enough.
TYPED_TEST(BackwardMutant, StaleKeysAndValuesPassByTheirMessages) {
  const auto problem = make_gradient_problem<TypeParam>(this->sixteen());
  EXPECT_TRUE(sent_what_it_should(with_transport<TypeParam, StaleKeysAndValues>(problem, 4), problem.what(),
                                  {.rings = 4}));
}

// ---- the global out and lse ------------------------------------------------------------------------------

/// Stops before the first hop: attention over a rank's own keys.
template <class T>
struct OverOwnKeys : CpuEngine<T> {
  using CpuEngine<T>::CpuEngine;
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override {
    if (std::exchange(first, false)) CpuEngine<T>::accumulate(kv, progress);
  }
  bool first = true;
};
template <class T>
TeamRun<T> over_own_keys(const Problem<T>& problem, int ranks) {
  return run(problem, {.rings = ranks}, device_of<T, OverOwnKeys<T>>(problem.what.block));
}

TYPED_TEST(BackwardMutant, ADeltaOfOneShardIsNoticed) {
  for (const Scoring& scoring : {Scoring{0.5}, causal_half}) {
    const auto problem = make_gradient_problem<TypeParam>(this->sixteen(scoring));
    auto forward = run(problem.forward, {.rings = 4});
    EXPECT_TRUE(agrees(backward_of(problem, forward), problem));

    auto own = over_own_keys(problem.forward, 4);
    for (std::size_t rank = 0; rank < 4; ++rank)
      std::swap(forward.ranks[rank].attended.out, own.ranks[rank].attended.out);  // delta = rowsum(dO * this)
    const Gradients<TypeParam> wrong = backward_of(problem, forward).gradients;
    EXPECT_FALSE(agrees(wrong, problem));
    EXPECT_FALSE(grad_q_agrees(wrong.q, problem));
    EXPECT_FALSE(grad_k_agrees(wrong.k, problem));
    EXPECT_TRUE(grad_v_agrees(wrong.v, problem)) << "a test of dV alone passes: delta is not in it";
  }
}

TYPED_TEST(BackwardMutant, AnLseOfOneShardIsNoticed) {
  for (const Scoring& scoring : {Scoring{0.5}, causal_half}) {
    const auto problem = make_gradient_problem<TypeParam>(this->sixteen(scoring));
    auto forward = run(problem.forward, {.rings = 4});
    EXPECT_TRUE(agrees(backward_of(problem, forward), problem));

    auto own = over_own_keys(problem.forward, 4);
    for (std::size_t rank = 0; rank < 4; ++rank)
      std::swap(forward.ranks[rank].attended.lse, own.ranks[rank].attended.lse);  // P = e^{s - this}
    const Gradients<TypeParam> wrong = backward_of(problem, forward).gradients;
    EXPECT_FALSE(agrees(wrong, problem));
    EXPECT_FALSE(grad_q_agrees(wrong.q, problem));
    EXPECT_FALSE(grad_k_agrees(wrong.k, problem));
    EXPECT_FALSE(grad_v_agrees(wrong.v, problem));
  }
}

// On one rank the shard is the whole sequence.
TYPED_TEST(BackwardMutant, OutAndLseOfOneShardPassOnOneRank) {
  const auto problem = make_gradient_problem<TypeParam>(this->sixteen(causal_half));
  EXPECT_TRUE(agrees(backward_of(problem, over_own_keys(problem.forward, 1)), problem));
}

// ---- engine --------------------------------------------------------------------------------------------

TYPED_TEST(BackwardMutant, AMissingScaleInDkIsNoticed) {
  for (const double scale : {0.5, 1.0}) {
    const auto problem = make_gradient_problem<TypeParam>(this->sixteen({scale, Mask::causal()}));
    auto got = run(problem, {.rings = 2});
    EXPECT_TRUE(agrees(got, problem));
    for (TypeParam& x : got.gradients.k.view().elements()) x /= static_cast<TypeParam>(scale);
    EXPECT_EQ(agrees(got, problem), scale == 1) << "why the tests have a scale that is not 1";
  }
}

// ---- mask ----------------------------------------------------------------------------------------------

// A mask on local positions: ../lessons/terms_test.cpp.

/// The ring's mask is replaced; the reference keeps the right one. The checks of forward and backward must fail,
/// and that of the backward alone after a right forward.
template <class T>
void expect_noticed(const Case& right, const Mask& wrong) {
  auto problem = make_gradient_problem<T>(right);
  const auto forward = run(problem.forward, {.rings = 4});
  EXPECT_TRUE(agrees(forward, problem.forward));
  EXPECT_TRUE(agrees(backward_of(problem, forward), problem));
  problem.forward.what.scoring.mask = wrong;
  EXPECT_FALSE(agrees(run(problem.forward, {.rings = 4}), problem.forward));
  EXPECT_FALSE(agrees(backward_of(problem, forward).gradients, problem));
}

std::shared_ptr<const Documents> documents(std::vector<Index> boundaries) {
  return std::make_shared<const Documents>(std::move(boundaries));
}

TYPED_TEST(BackwardMutant, ADocumentBoundaryOffByOneIsNoticed) {
  for (const Index right : {Mask::unlimited, Index{0}}) {
    const Mask mask{.right = right, .documents = documents({0, 5, 11, 16})};
    const Case what = this->sixteen({0.5, mask});
    for (const auto& wrong : {documents({0, 6, 11, 16}), documents({0, 4, 11, 16}), documents({0, 5, 12, 16}),
                              documents({0, 5, 11, 15})})
      expect_noticed<TypeParam>(what, {.right = right, .documents = wrong});
  }
}

TYPED_TEST(BackwardMutant, AWindowOffByOneIsNoticed) {
  const Case what = this->sixteen({0.5, {.left = 3, .right = 2}});
  for (const auto& [left, right] : {std::pair<Index, Index>{4, 2}, {2, 2}, {3, 3}, {3, 1}})
    expect_noticed<TypeParam>(what, {.left = left, .right = right});
  expect_noticed<TypeParam>(this->sixteen(causal_half), {.right = 1});  // not causal: sees one token ahead
  expect_noticed<TypeParam>(this->sixteen(causal_half), {.right = -1});
}

// Why the windows of the tests are shorter than the sequence.
TYPED_TEST(BackwardMutant, AWindowOffByOnePassesWhereItIsTooWideToMatter) {
  auto problem = make_gradient_problem<TypeParam>(this->sixteen({0.5, {.left = 15, .right = 0}}));
  problem.forward.what.scoring.mask.left = 16;
  EXPECT_TRUE(agrees(backward_of(problem, run(problem.forward, {.rings = 4})), problem));
}

}  // namespace
}  // namespace ring_attention::test
