// The ring over threads against the reference and the single device, and what it costs.

#include "ring_attention/ring/forward.hpp"

#include <gtest/gtest.h>

#include "support/counting_transport.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

constexpr std::initializer_list<int> forward_ring_sizes{1, 2, 3, 4, 5, 7, 8};

template <class T>
void expect_a_right_ring(const Problem<T>& problem, int ranks) {
  const auto got = run(problem, {.rings = ranks});
  EXPECT_TRUE(agrees(got, problem));
  EXPECT_TRUE(sent_what_it_should(got, problem.what, {.rings = ranks}));
}

// 252 cases, each in float and double: every ring size, with and without the causal mask, with 1, 2 and 8
// query heads to a KV head, six times. In double also with the readable engine.
TEST(RingForward, AgreesWithTheReferenceOnRandomProblems) {
  for_each_case(252, [](Dice& dice, Index index) {
    const int ranks = forward_ring_sizes.begin()[index % 7];
    const Case what = random_case(dice, index / 7, ranks);
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + to_string(what));
    expect_a_right_ring(make_problem<float>(what), ranks);
    const auto problem = make_problem<double>(what);
    expect_a_right_ring(problem, ranks);
    EXPECT_TRUE(agrees(run(problem, {.rings = ranks}, CpuDevice<double>({}, what.block)), problem));
  });
}

template <class T>
class RingForwardIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingForwardIn, Types);

TYPED_TEST(RingForwardIn, OneRankIsTheSingleDeviceBitForBit) {
  for_each_case(40, [](Dice& dice, Index index) {
    const auto problem = make_problem<TypeParam>(random_case(dice, index, 1));
    const auto ring = run(problem, {});
    const auto device = attention_forward<TypeParam>(problem.q, problem.k, problem.v, problem.what.scoring);
    EXPECT_TRUE(same_bits(ring.attended, device)) << to_string(problem.what);
  });
}

TYPED_TEST(RingForwardIn, MoreRanksThanTokens) {
  const Scoring causal{1, Mask::causal()};
  expect_a_right_ring(
      make_problem<TypeParam>({.batch = 2, .group = 2, .queries = 5, .keys = 5, .scoring = causal}), 7);
  expect_a_right_ring(make_problem<TypeParam>({.queries = 5, .keys = 5}), 7);
  expect_a_right_ring(make_problem<TypeParam>({.queries = 1, .keys = 1, .scoring = causal}), 8);
  expect_a_right_ring(make_problem<TypeParam>({.queries = 1, .keys = 1}), 1);
  expect_a_right_ring(make_problem<TypeParam>({.queries = 9, .keys = 2}), 4);
  expect_a_right_ring(make_problem<TypeParam>({.queries = 2, .keys = 9, .scoring = {1, Mask::causal(9 - 2)}}),
                      4);
}

TYPED_TEST(RingForwardIn, EmptyRanksEndWithEmptyResults) {
  const auto got = run(make_problem<TypeParam>({.queries = 3, .keys = 3}), {.rings = 5});
  EXPECT_EQ(got[4].attended.out.size(), 0);
  EXPECT_EQ(got[4].attended.lse.size(), 0);
  EXPECT_EQ(got[4].forward_kv.messages_sent, 2) << "an empty parcel is no message";
}

TYPED_TEST(RingForwardIn, TheSameRingGivesTheSameBits) {
  const auto problem =
      make_problem<TypeParam>({.queries = 40, .keys = 40, .dim = 16, .block = 7, .spike_every = 4});
  EXPECT_TRUE(same_bits(run(problem, {.rings = 3}).attended, run(problem, {.rings = 3}).attended));
}

// ---- what it sends -------------------------------------------------------------------------------------

TYPED_TEST(RingForwardIn, SendsEveryParcelButThatOfItsNextRank) {
  // 7 tokens on 3 ranks: 3, 2, 2. A token of K and V is 2 * 2 batches * 2 KV heads * 4 dim = 32 elements.
  const auto problem =
      make_problem<TypeParam>({.batch = 2, .kv_heads = 2, .group = 2, .queries = 7, .keys = 7});
  const auto got = run(problem, {.rings = 3});
  const Index token = 32 * sizeof(TypeParam);
  EXPECT_EQ(got[0].forward_kv.bytes_sent, (7 - 2) * token);
  EXPECT_EQ(got[1].forward_kv.bytes_sent, (7 - 2) * token);
  EXPECT_EQ(got[2].forward_kv.bytes_sent, (7 - 3) * token);
  EXPECT_EQ(got[0].forward_kv.bytes_received, (7 - 3) * token);
  for (const auto& rank : got.ranks) EXPECT_EQ(rank.forward_kv.messages_sent, 2);
}

TYPED_TEST(RingForwardIn, OneRankSendsNothing) {
  const auto got = run(make_problem<TypeParam>({}), {});
  EXPECT_EQ(got[0].forward_kv.messages_sent, 0);
  EXPECT_EQ(got[0].forward_kv.bytes_sent, 0);
}

// ---- what it holds -------------------------------------------------------------------------------------

TYPED_TEST(RingForwardIn, HoldsOneQueryShardAndFourKvShardsBesidesItsArrays) {
  for (const int ranks : forward_ring_sizes) {
    const auto problem = make_problem<TypeParam>(
        {.batch = 2, .kv_heads = 2, .group = 2, .queries = 50, .keys = 43, .dim = 8, .block = 4});
    const auto got = run(problem, {.rings = ranks});
    const Placement queries(PlacementKind::contiguous, 50, ranks);
    const Placement keys(PlacementKind::contiguous, 43, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const Shape q = problem.what.q().with_seq(queries.tokens(rank));
      const Shape kv = problem.what.kv().with_seq(keys.max_tokens());
      const Index elements = q.size()                            // out
                             + (ranks == 1 ? 2 : 4) * kv.size()  // k, v; twice where they travel
                             + 2 * q.per_row().size()            // m, which becomes lse, and l
                             + forward_tile_elements<TypeParam>(q);
      EXPECT_EQ(got[rank].forward_peak, elements * static_cast<Index>(sizeof(TypeParam)))
          << "rank " << rank << " of " << ranks;
    }
  }
}

TYPED_TEST(RingForwardIn, AllocatesNothingInsideTheLoop) {
  const auto problem = make_problem<TypeParam>({.group = 2, .queries = 23, .keys = 23, .block = 3});
  EXPECT_TRUE(agrees(
      run(problem, {.rings = 4}, CpuDevice<TypeParam>(), {.links = links_with<CountsAllocations>}), problem));
}

TEST(RingForward, ConsumesKvFromThreeRanksOn) {
  LoopbackWorld world(3);
  world.run([&](int rank) {
    const Placement placement(PlacementKind::contiguous, 3, 3);
    const Tensor<float> q({1, 1, 1, 1});
    KvParcel<float> kv({1, 1, 3, 1}, placement, rank);
    kv.k()(0, 0, 0) = static_cast<float>(rank);
    BlockwiseEngine<float> engine({});
    engine.begin(q, placement.ranges(rank));
    LoopbackTransport transport(world, rank);
    ring_forward(engine, transport, kv);
    EXPECT_EQ(kv.owner(), transport.ring().next()) << "it ends with what it never sends";
    EXPECT_EQ(kv.k()(0, 0, 0), static_cast<float>(transport.ring().next()));
  });
}

}  // namespace
}  // namespace ring_attention::test
