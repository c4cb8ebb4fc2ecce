// K and V as one message, and its two buffers.

#include "ring_attention/ring/parcel.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "ring_attention/core/allocation.hpp"

namespace ring_attention::test {
namespace {

const Shape kv_shape{2, 3, 0, 4};

TEST(KvParcel, IsKFollowedByVOfItsOwner) {
  const Placement placement(PlacementKind::contiguous, 5, 2);  // 3 and 2 tokens
  KvParcel<float> kv(kv_shape, placement, 1);
  EXPECT_EQ(kv.owner(), 1);
  EXPECT_EQ(kv.k().shape(), kv_shape.with_seq(2));
  EXPECT_EQ(kv.v().data(), kv.k().data() + kv.k().size());
  EXPECT_EQ(kv.current().ranges, placement.ranges(1));
  EXPECT_EQ(static_cast<const void*>(kv.exchange(0).send.data()), kv.k().data());
}

TEST(KvParcel, AMessageIsAsLongAsItsOwnersShard) {
  const Placement placement(PlacementKind::contiguous, 5, 2);
  KvParcel<float> kv(kv_shape, placement, 1);
  const Hop hop = kv.exchange(0);
  EXPECT_EQ(hop.send.size(), sizeof(float) * 2 * 2 * 3 * 2 * 4);
  EXPECT_EQ(hop.receive.size(), sizeof(float) * 2 * 2 * 3 * 3 * 4);
}

TEST(KvParcel, AdvanceMakesWhatArrivedCurrent) {
  const Placement placement(PlacementKind::contiguous, 5, 2);
  KvParcel<double> kv(kv_shape, placement, 0);
  std::ranges::fill(kv.k().elements(), 1.0);
  const Hop hop = kv.exchange(1);
  std::vector<double> arrived(hop.receive.size() / sizeof(double), 2.0);
  std::ranges::copy(std::as_bytes(std::span(arrived)), hop.receive.begin());
  EXPECT_EQ(kv.owner(), 0) << "not before advance()";
  EXPECT_EQ(kv.k()(0, 0, 0), 1.0);

  kv.advance();
  EXPECT_EQ(kv.owner(), 1);
  EXPECT_EQ(kv.current().ranges, placement.ranges(1));
  EXPECT_TRUE(std::ranges::all_of(kv.k().elements(), [](double x) { return x == 2.0; }));
  EXPECT_TRUE(std::ranges::all_of(kv.v().elements(), [](double x) { return x == 2.0; }));
}

TEST(KvParcel, OfARankWithoutTokensIsEmpty) {
  const Placement placement(PlacementKind::contiguous, 2, 3);
  KvParcel<float> kv(kv_shape, placement, 2);
  EXPECT_EQ(kv.k().size(), 0);
  EXPECT_TRUE(kv.current().ranges.empty());
  EXPECT_EQ(kv.exchange(1).send.size(), 0u);
  EXPECT_EQ(kv.exchange(1).receive.size(), sizeof(float) * 2 * 2 * 3 * 1 * 4);
}

TEST(KvParcel, HoldsFourShardsOrTwoAlone) {
  const Index shard = kv_shape.with_seq(3).size() * static_cast<Index>(sizeof(float));
  const Index before = allocation::current();
  const KvParcel<float> ring(kv_shape, Placement(PlacementKind::contiguous, 8, 3), 2);
  EXPECT_EQ(allocation::current() - before, 4 * shard) << "as large as the largest shard";
  const KvParcel<float> alone(kv_shape, Placement(PlacementKind::contiguous, 3, 1), 0);
  EXPECT_EQ(allocation::current() - before, 4 * shard + 2 * shard);
}

}  // namespace
}  // namespace ring_attention::test
