// The ring backward over threads against the reference and the single device, and what it costs.

#include "ring_attention/ring/backward.hpp"

#include <gtest/gtest.h>

#include "support/counting_transport.hpp"
#include "support/masks.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

constexpr std::initializer_list<int> ring_sizes{1, 2, 3, 4, 5, 7, 8};
template <class T>
void expect_a_right_ring(const GradientProblem<T>& problem, int ranks) {
  const auto got = run(problem, {.rings = ranks});
  EXPECT_TRUE(agrees(got, problem));
  EXPECT_TRUE(sent_what_it_should(got, problem.what(), {.rings = ranks}));
}

/// random_case has no window that looks ahead.
Case random_gradient_case(Dice& dice, Index index, int ranks) {
  Case what = random_case(dice, index, ranks);
  if (what.scoring.mask.right != 0 && dice.one_in(3)) what.scoring.mask.right = dice.between(0, what.keys);
  return what;
}

// 336 cases, each in float and double: every ring size, with and without the causal mask, with 1, 2 and 8
// query heads to a KV head, eight times. In double also with the readable engine.
TEST(RingBackward, AgreesWithTheReferenceOnRandomProblems) {
  for_each_case(336, [](Dice& dice, Index index) {
    const int ranks = ring_sizes.begin()[index % 7];
    const Case what = random_gradient_case(dice, index / 7, ranks);
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + to_string(what));
    expect_a_right_ring(make_gradient_problem<float>(what), ranks);
    const auto problem = make_gradient_problem<double>(what);
    expect_a_right_ring(problem, ranks);
    EXPECT_TRUE(agrees(run(problem, {.rings = ranks}, CpuDevice<double>({}, what.block)), problem));
  });
}

template <class T>
class RingBackwardIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingBackwardIn, Types);

// Every mask with every placement and every ring size; lengths and groups alternate.
TYPED_TEST(RingBackwardIn, AgreesWithTheReferenceUnderEveryMaskAndPlacement) {
  constexpr std::pair<Index, Index> lengths[] = {{17, 17}, {9, 22}, {19, 13}};
  constexpr Index groups[] = {1, 2, 8};
  std::size_t turn = 0;
  for (const int ranks : ring_sizes)
    for (const PlacementKind kind : placement_kinds)
      for (std::size_t mask = 0; mask < every_scoring(1, 1, 1, 1).size(); ++mask, ++turn) {
        const auto [queries, keys] = lengths[turn % 3];
        const Index group = groups[turn / 3 % 3];
        const auto [name, scoring] = every_scoring(queries, keys, 2 * group, 0.4)[mask];
        SCOPED_TRACE(name + " on " + std::to_string(ranks) + " ranks");
        expect_a_right_ring(make_gradient_problem<TypeParam>({.group = group,
                                                              .queries = queries,
                                                              .keys = keys,
                                                              .dim = 3,
                                                              .scoring = scoring,
                                                              .block = 3,
                                                              .kind = kind}),
                            ranks);
      }
}

TYPED_TEST(RingBackwardIn, OneRankIsTheSingleDeviceBitForBit) {
  for_each_case(40, [](Dice& dice, Index index) {
    const Case what = random_gradient_case(dice, index, 1);
    const auto problem = make_gradient_problem<TypeParam>(what);
    EXPECT_TRUE(same_bits(run(problem, {}).gradients, single_device(problem).gradients)) << to_string(what);
  });
}

TYPED_TEST(RingBackwardIn, TheSameRingGivesTheSameBits) {
  const auto problem = make_gradient_problem<TypeParam>(
      {.queries = 40, .keys = 40, .dim = 16, .block = 7, .kind = PlacementKind::zigzag, .spike_every = 4});
  EXPECT_TRUE(same_bits(run(problem, {.rings = 3}).gradients, run(problem, {.rings = 3}).gradients));
}

TYPED_TEST(RingBackwardIn, MoreRanksThanTokens) {
  const Scoring causal{1, Mask::causal()};
  for (const PlacementKind kind : placement_kinds) {
    expect_a_right_ring(
        make_gradient_problem<TypeParam>(
            {.batch = 2, .group = 2, .queries = 5, .keys = 5, .scoring = causal, .kind = kind}),
        7);
    expect_a_right_ring(
        make_gradient_problem<TypeParam>({.queries = 1, .keys = 1, .scoring = causal, .kind = kind}), 8);
    expect_a_right_ring(make_gradient_problem<TypeParam>({.queries = 9, .keys = 2, .kind = kind}), 4);
    expect_a_right_ring(make_gradient_problem<TypeParam>(
                            {.queries = 2, .keys = 9, .scoring = {1, Mask::causal(9 - 2)}, .kind = kind}),
                        4);
  }
}

TYPED_TEST(RingBackwardIn, EmptyRanksEndWithEmptyGradients) {
  const auto got = run(make_gradient_problem<TypeParam>({.queries = 3, .keys = 3}), {.rings = 5});
  EXPECT_EQ(got[4].gradients.q.size(), 0);
  EXPECT_EQ(got[4].gradients.k.size(), 0);
  EXPECT_EQ(got[4].kv.messages_sent, 2) << "an empty parcel is no message";
  EXPECT_EQ(got[4].gradient.messages_sent, 3);
}

// Of nine rows the first five see no key: rank 0 of three holds three of them.
TYPED_TEST(RingBackwardIn, RowsThatSeeNothingHaveNoGradient) {
  const auto problem = make_gradient_problem<TypeParam>(
      {.queries = 9, .keys = 4, .scoring = {1, Mask::causal(4 - 9)}, .block = 2});
  const auto got = run(problem, {.rings = 3});
  EXPECT_TRUE(agrees(got, problem));
  for (const TypeParam x : got[0].gradients.q.view().elements()) EXPECT_EQ(x, 0);
}

// ---- what it sends -------------------------------------------------------------------------------------

TYPED_TEST(RingBackwardIn, SendsGradientsOneHopMoreThanKeysAndValues) {
  // 7 tokens on 3 ranks: 3, 2, 2. A token of K and V is 2 * 2 batches * 2 KV heads * 4 dim = 32 elements.
  const auto problem =
      make_gradient_problem<TypeParam>({.batch = 2, .kv_heads = 2, .group = 2, .queries = 7, .keys = 7});
  const auto got = run(problem, {.rings = 3});
  const Index token = 32 * sizeof(TypeParam);
  EXPECT_EQ(got[0].kv.bytes_sent, (7 - 2) * token);
  EXPECT_EQ(got[2].kv.bytes_sent, (7 - 3) * token);
  for (const auto& result : got.ranks) {
    EXPECT_EQ(result.kv.messages_sent, 2);
    EXPECT_EQ(result.gradient.messages_sent, 3);
    EXPECT_EQ(result.gradient.bytes_sent, 7 * token) << "those of every rank, once";
    EXPECT_EQ(result.gradient.bytes_received, 7 * token);
  }
}

TYPED_TEST(RingBackwardIn, OneRankSendsNothing) {
  const auto got = run(make_gradient_problem<TypeParam>({}), {});
  for (const TransportStatistics& sent : {got[0].kv, got[0].gradient}) {
    EXPECT_EQ(sent.messages_sent, 0);
    EXPECT_EQ(sent.bytes_sent, 0);
    EXPECT_EQ(sent.bytes_received, 0);
  }
}

// ---- what it holds -------------------------------------------------------------------------------------

TYPED_TEST(RingBackwardIn, HoldsOneQueryShardFourKvShardsAndSixOfGradientsBesidesItsArrays) {
  for (const PlacementKind kind : placement_kinds)
    for (const int ranks : ring_sizes) {
      const auto problem = make_gradient_problem<TypeParam>(
          {.batch = 2, .group = 2, .queries = 50, .keys = 43, .dim = 8, .block = 4, .kind = kind});
      const auto got = run(problem, {.rings = ranks});
      const Placement queries(kind, 50, ranks);
      const Placement keys(kind, 43, ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        const Shape q = problem.what().q().with_seq(queries.tokens(rank));
        const Shape kv = problem.what().kv().with_seq(keys.max_tokens());
        const Index elements =
            q.size()                            // dQ
            + q.per_row().size()                // delta
            + (ranks == 1 ? 2 : 4) * kv.size()  // k, v; twice where they travel
            + (ranks == 1 ? 4 : 6) * kv.size()  // dk, dv likewise; and those of a step
            + tile_elements<TypeParam>(kernels<TypeParam>(best_isa()).backward.workspace, q.dim);
        EXPECT_EQ(got[rank].peak, elements * static_cast<Index>(sizeof(TypeParam)))
            << name(kind) << ", rank " << rank << " of " << ranks;
      }
    }
}

// The claim of the paper: the length grows with the number of ranks, the memory of a rank does not.
TYPED_TEST(RingBackwardIn, HoldsTheSameWhenRanksAndTokensGrowTogether) {
  for (const PlacementKind kind : placement_kinds) {
    Index forward_bytes = 0, backward_bytes = 0;
    for (const int ranks : {2, 3, 4, 5, 7, 8}) {
      const Index tokens = Index{6} * ranks;
      const auto problem = make_gradient_problem<TypeParam>(
          {.group = 2, .queries = tokens, .keys = tokens, .dim = 8, .block = 4, .kind = kind});
      const auto got = run(problem, {.rings = ranks});
      if (ranks == 2) {
        forward_bytes = got[0].forward_peak;
        backward_bytes = got[0].peak;
        EXPECT_GT(forward_bytes, 0);
      }
      for (const auto& rank : got.ranks) {
        EXPECT_EQ(rank.forward_peak, forward_bytes) << ranks << " ranks";
        EXPECT_EQ(rank.peak, backward_bytes) << ranks << " ranks";
      }
    }
  }
}

TYPED_TEST(RingBackwardIn, AllocatesNothingInsideTheLoop) {
  const auto problem = make_gradient_problem<TypeParam>({.group = 2, .queries = 23, .keys = 23, .block = 3});
  EXPECT_TRUE(agrees(
      run(problem, {.rings = 4}, CpuDevice<TypeParam>(), {.links = links_with<CountsAllocations>}), problem));
}

}  // namespace
}  // namespace ring_attention::test
