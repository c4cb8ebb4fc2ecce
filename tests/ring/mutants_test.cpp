// Wrong variants that look right: the check that passes for the right one fails for each of them.

#include "support/mutants.hpp"

#include <gtest/gtest.h>

namespace ring_attention::test {
namespace {

template <class T, class Rules>
testing::AssertionResult engine_agrees(const Problem<T>& problem, int ranks = 2) {
  return agrees(run(problem, {.rings = ranks}, device_of<T, SmallEngine<T, Rules>>(problem.what.block)),
                problem);
}

template <class T, class Owners>
testing::AssertionResult topology_agrees(const Problem<T>& problem, int ranks) {
  return ring_of_owners_agrees<T, Owners>(problem, ranks);
}

template <class T, class Link>
testing::AssertionResult transport_agrees(const Problem<T>& problem, int ranks) {
  return agrees(run(problem, {.rings = ranks}, CpuDevice<T>(), {.links = links_with<Link>}), problem);
}

template <class T>
class Mutant : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Mutant, Types);

const Scoring causal{0.5, Mask::causal()};

// ---- ring ----------------------------------------------------------------------------------------------

TYPED_TEST(Mutant, AStepTooFewIsNoticed) {
  for (const int ranks : {2, 3, 4, 5, 7, 8}) {
    const auto problem = make_problem<TypeParam>({.queries = 16, .keys = 16});
    EXPECT_TRUE((topology_agrees<TypeParam, RightOwners>(problem, ranks)));
    EXPECT_FALSE((topology_agrees<TypeParam, OneStepTooFew>(problem, ranks))) << ranks;
  }
}

TYPED_TEST(Mutant, AStepTooFewIsNoticedUnderACausalMask) {
  const auto problem = make_problem<TypeParam>({.queries = 16, .keys = 16, .scoring = causal});
  EXPECT_TRUE((topology_agrees<TypeParam, RightOwners>(problem, 4)));
  EXPECT_FALSE((topology_agrees<TypeParam, OneStepTooFew>(problem, 4)));
}

TYPED_TEST(Mutant, AnOwnerOffByOneIsNoticedUnderACausalMask) {
  for (const int ranks : {2, 4, 8}) {
    const auto problem = make_problem<TypeParam>({.queries = 16, .keys = 16, .scoring = causal});
    EXPECT_TRUE((topology_agrees<TypeParam, RightOwners>(problem, ranks)));
    EXPECT_FALSE((topology_agrees<TypeParam, OwnerOffByOne>(problem, ranks))) << ranks;
  }
}

TYPED_TEST(Mutant, OwnersTheWrongWayRoundAreNoticedUnderACausalMask) {
  for (const int ranks : {4, 8}) {  // with 2 ranks both ways are the same
    const auto problem = make_problem<TypeParam>({.queries = 16, .keys = 16, .scoring = causal});
    EXPECT_TRUE((topology_agrees<TypeParam, RightOwners>(problem, ranks)));
    EXPECT_FALSE((topology_agrees<TypeParam, OwnerBackwards>(problem, ranks))) << ranks;
  }
}

// Why these tests need a mask: without one the position of a key does not matter.
TYPED_TEST(Mutant, WrongOwnersPassWithoutAMask) {
  const auto problem = make_problem<TypeParam>({.queries = 16, .keys = 16});
  EXPECT_TRUE((topology_agrees<TypeParam, OwnerOffByOne>(problem, 4)));
  EXPECT_TRUE((topology_agrees<TypeParam, OwnerBackwards>(problem, 4)));
}

TYPED_TEST(Mutant, BuffersSwappedTooEarlyAreNoticed) {
  for (const int ranks : {2, 3, 4, 5}) {
    const auto problem = make_problem<TypeParam>({.queries = 15, .keys = 15, .scoring = causal});
    EXPECT_TRUE((transport_agrees<TypeParam, LoopbackTransport>(problem, ranks)));
    EXPECT_FALSE((transport_agrees<TypeParam, SwapsTooEarly>(problem, ranks))) << ranks;
  }
}

TYPED_TEST(Mutant, AHopTooManyIsNoticedByItsMessages) {
  const auto problem = make_problem<TypeParam>({.queries = 15, .keys = 15});
  const auto right = run(problem, {.rings = 4});
  const auto wrong = run(problem, {.rings = 4}, CpuDevice<TypeParam>(), {.links = links_with<OneHopTooMany>});
  EXPECT_TRUE(agrees(wrong, problem)) << "the numbers do not show it";
  EXPECT_TRUE(sent_what_it_should(right, problem.what, {.rings = 4}));
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_FALSE(sent_what_it_should(wrong[rank], problem.what, {.rings = 4}, rank));
}

// ---- engine --------------------------------------------------------------------------------------------

/// All scores lie within 1 of `score`.
template <class T>
Problem<T> problem_with_scores_near(double score) {
  const Case what{.kv_heads = 1, .queries = 6, .keys = 12, .dim = 1, .block = 4};
  Tensor<T> q(what.q(), static_cast<T>(100)), k(what.kv()), v(what.kv());
  fill_random(v.view(), {.stream = 2});
  for (Index i = 0; i < k.size(); ++i)
    k.data()[i] = static_cast<T>(score / 100 + 0.01 * std::sin(static_cast<double>(i)));
  return make_problem(what, std::move(q), std::move(k), std::move(v));
}

TYPED_TEST(Mutant, AFiniteStartIsNoticedFarBelowIt) {
  const double below = sizeof(TypeParam) == sizeof(float) ? -10200 : -11000;  // e^-200, e^-1000 underflow
  const auto problem = problem_with_scores_near<TypeParam>(below);
  EXPECT_GT(problem.want.max_abs_score, -below - 2);
  EXPECT_TRUE((engine_agrees<TypeParam, RightRules>(problem)));
  EXPECT_FALSE((engine_agrees<TypeParam, FiniteStart>(problem)));
  EXPECT_TRUE((engine_agrees<TypeParam, FiniteStart>(problem_with_scores_near<TypeParam>(-500))))
      << "ordinary scores do not show it";
}

/// Five queries are at the positions 2 .. 6 of seven keys. On two ranks the first rank's queries 2, 3, 4
/// meet the keys 4, 5, 6 in one tile: it masks two of three rows fully, though each has keys elsewhere.
template <class T>
Problem<T> problem_with_a_fully_masked_tile_row() {
  return make_problem<T>({.queries = 5, .keys = 7, .scoring = {0.5, Mask::causal(7 - 5)}});
}

TYPED_TEST(Mutant, AnUnguardedMinusInfinityIsNoticed) {
  const auto problem = problem_with_a_fully_masked_tile_row<TypeParam>();
  EXPECT_TRUE((engine_agrees<TypeParam, RightRules>(problem)));
  const auto wrong = run(problem, {.rings = 2},
                         device_of<TypeParam, SmallEngine<TypeParam, UnguardedScores>>(problem.what.block));
  EXPECT_FALSE(agrees(wrong, problem));
  EXPECT_TRUE(std::isnan(wrong.attended.out.view()(0, 0, 0))) << "even after valid blocks";
}

TYPED_TEST(Mutant, AnUnguardedMergeIsNoticed) {
  // The first queries see no key at all: both states are empty.
  const auto problem =
      make_problem<TypeParam>({.queries = 7, .keys = 5, .scoring = {0.5, Mask::causal(5 - 7)}, .block = 3});
  EXPECT_TRUE((engine_agrees<TypeParam, RightRules>(problem)));
  EXPECT_FALSE((engine_agrees<TypeParam, UnguardedMerge>(problem)));
}

TYPED_TEST(Mutant, ASumThatIsNotRescaledIsNoticed) {
  const auto problem = make_problem<TypeParam>({.queries = 12, .keys = 12, .block = 4});
  EXPECT_TRUE((engine_agrees<TypeParam, RightRules>(problem)));
  EXPECT_FALSE((engine_agrees<TypeParam, ForgetsToRescale>(problem)));
}

/// The scores of the last two keys are far above those of the others.
template <class T>
Problem<T> problem_with_a_jump(double jump) {
  const Case what{.kv_heads = 1, .queries = 4, .keys = 8, .dim = 1, .block = 4};
  Tensor<T> q(what.q(), T{1}), k(what.kv()), v(what.kv());
  fill_random(v.view(), {.stream = 2});
  for (Index i = 0; i < k.size(); ++i)
    k.data()[i] = static_cast<T>(0.1 * static_cast<double>(i) + (i < 6 ? 0 : jump));
  return make_problem(what, std::move(q), std::move(k), std::move(v));
}

TYPED_TEST(Mutant, AnLseMergeThatOverflowsIsNoticed) {
  const auto problem = problem_with_a_jump<TypeParam>(sizeof(TypeParam) == sizeof(float) ? 95 : 720);
  EXPECT_TRUE((engine_agrees<TypeParam, RightRules>(problem, 1)));
  EXPECT_TRUE((engine_agrees<TypeParam, StableLseMerge>(problem, 1))) << "the same merge, written safely";
  EXPECT_FALSE((engine_agrees<TypeParam, OverflowingLseMerge>(problem, 1)));
  EXPECT_TRUE((engine_agrees<TypeParam, OverflowingLseMerge>(problem_with_a_jump<TypeParam>(20), 1)))
      << "a smaller jump does not show it";
}

TYPED_TEST(Mutant, InterleavedHeadsAreNoticed) {
  const Case grouped{.kv_heads = 2, .group = 2, .queries = 8, .keys = 8};
  const auto problem = make_problem<TypeParam>(grouped);
  EXPECT_TRUE((engine_agrees<TypeParam, RightRules>(problem)));
  EXPECT_FALSE((engine_agrees<TypeParam, InterleavedHeads<2>>(problem)));
  const Case wider{.kv_heads = 3, .group = 8, .queries = 8, .keys = 8};
  EXPECT_FALSE((engine_agrees<TypeParam, InterleavedHeads<3>>(make_problem<TypeParam>(wider))));
}

// Why the tests have more than one KV head and more query heads than that.
TYPED_TEST(Mutant, InterleavedHeadsPassWithoutGroupsOrWithOneKvHead) {
  const auto one_each = make_problem<TypeParam>({.kv_heads = 4, .group = 1});
  EXPECT_TRUE((engine_agrees<TypeParam, InterleavedHeads<4>>(one_each)));
  const auto one_for_all = make_problem<TypeParam>({.kv_heads = 1, .group = 4});
  EXPECT_TRUE((engine_agrees<TypeParam, InterleavedHeads<1>>(one_for_all)));
}

// ---- mask ----------------------------------------------------------------------------------------------

TYPED_TEST(Mutant, TopLeftAlignmentIsNoticed) {
  auto problem = make_problem<TypeParam>({.queries = 5, .keys = 9, .scoring = {0.5, Mask::causal(9 - 5)}});
  EXPECT_TRUE(agrees(run(problem, {.rings = 3}), problem));
  problem.what.scoring.mask.offset = 0;  // the reference keeps the right one
  EXPECT_FALSE(agrees(run(problem, {.rings = 3}), problem));
}

}  // namespace
}  // namespace ring_attention::test
