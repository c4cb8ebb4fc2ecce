// What a ring over threads sends, in numbers by hand. (By formula, what it holds, and its results: ../conformance.)

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ring_attention/ring/forward.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

template <class T>
class RingCosts : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingCosts, Types);

TYPED_TEST(RingCosts, SendsGradientsOneHopMoreThanKeysAndValues) {
  // 7 tokens on 3 ranks: 3, 2, 2. A token of K and V is 2 * 2 batches * 2 KV heads * 4 dim = 32 elements.
  const auto problem =
      make_gradient_problem<TypeParam>({.batch = 2, .kv_heads = 2, .group = 2, .queries = 7, .keys = 7});
  const auto got = run(problem, {.rings = 3});
  const Index token = 32 * sizeof(TypeParam);
  EXPECT_EQ(got[0].kv.bytes_sent, (7 - 2) * token);
  EXPECT_EQ(got[2].kv.bytes_sent, (7 - 3) * token);
  for (const auto& result : got.ranks) {
    EXPECT_EQ(result.forward_kv.messages_sent, 2);
    EXPECT_EQ(result.kv.messages_sent, 2);
    EXPECT_EQ(result.gradient.messages_sent, 3);
    EXPECT_EQ(result.gradient.bytes_sent, 7 * token) << "those of every rank, once";
    EXPECT_EQ(result.gradient.bytes_received, 7 * token);
  }
}

/// Notes the number of allocations at every hook of the loop.
class CountsAllocations : public LoopbackTransport {
 public:
  using LoopbackTransport::LoopbackTransport;
  ~CountsAllocations() override {
    EXPECT_GT(hooks_, 0);
    EXPECT_EQ(least_, most_) << "a tensor was allocated inside the loop";
  }
  void start(const Hop& hop) override {
    note();
    LoopbackTransport::start(hop);
    note();
  }
  void progress() override { note(); }
  void finish() override {
    note();
    LoopbackTransport::finish();
    note();
  }
  void drain() override {
    note();
    LoopbackTransport::drain();
    note();
  }

 private:
  void note() {
    ++hooks_;
    least_ = std::min(least_, allocation::count());
    most_ = std::max(most_, allocation::count());
  }
  int hooks_ = 0;
  Index least_ = std::numeric_limits<Index>::max();
  Index most_ = 0;
};

TYPED_TEST(RingCosts, AllocatesNothingInsideTheLoop) {
  const auto problem = make_gradient_problem<TypeParam>({.group = 2, .queries = 23, .keys = 23, .block = 3});
  EXPECT_TRUE(
      agrees(run(problem, {.rings = 4}, CpuDevice<TypeParam>(), links_with<CountsAllocations>), problem));
}

TEST(Ring, ConsumesKvFromThreeRanksOn) {
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
