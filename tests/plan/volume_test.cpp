#include "plan/volume.hpp"

#include <gtest/gtest.h>

#include "plan/pairs.hpp"
#include "plan/ring_time.hpp"

namespace ring_attention::plan {
namespace {

/// In units of batch * tokens * dim elements, as all-to-all and ring.
std::pair<double, double> units(Index heads, Index kv_heads, int ulysses, int ring) {
  const Attention layer{1, 1, heads, kv_heads, 1, 1, 1};
  const Volume volume = hybrid_forward(layer, ulysses, ring);
  return {volume.all_to_all, volume.ring};
}

using Pair = std::pair<double, double>;

TEST(HybridVolume, MultiHeadAttention) {  // 32 query and 32 KV heads: q, k, v, out are 128 units
  EXPECT_EQ(units(32, 32, 1, 8), Pair(0, 7 * 64));
  EXPECT_EQ(units(32, 32, 2, 4), Pair(64, 3 * 64));
  EXPECT_EQ(units(32, 32, 8, 1), Pair(112, 0));
  EXPECT_EQ(units(32, 32, 1, 64), Pair(0, 63 * 64));
  EXPECT_EQ(units(32, 32, 32, 2), Pair(124, 64));
}

TEST(HybridVolume, GroupedQueriesMakeTheRingCheap) {
  EXPECT_EQ(units(32, 8, 1, 8), Pair(0, 112));
  EXPECT_EQ(units(32, 8, 8, 1), Pair(70, 0));
  EXPECT_EQ(units(128, 8, 1, 8), Pair(0, 112));
  EXPECT_EQ(units(128, 8, 8, 1), Pair(238, 0));
}

TEST(HybridVolume, MoreRanksThanKvHeadsSendReplicas) {
  EXPECT_EQ(units(32, 8, 16, 4), Pair(90, 96));  // 15/16 (64 + 2 * 16), 3 * 2 * 16
  EXPECT_EQ(units(32, 1, 8, 1), Pair(70, 0));
  EXPECT_EQ(units(32, 1, 2, 4), Pair(34, 12));
}

const Attention llama_layer{1, 131072.0 / 8, 32, 8, 128};  // 3 8B, 131072 tokens on 8 ranks

TEST(Volume, OneRankSendsNothing) {
  EXPECT_EQ(hybrid_forward(llama_layer, 1, 1).total(), 0);
  EXPECT_EQ(hybrid_backward(llama_layer, 1, 1).total(), 0);
  EXPECT_EQ(all_gather_backward(llama_layer, 1).total(), 0);
  EXPECT_EQ(tensor_bytes(100, 64, 2, 1), 0);
  EXPECT_EQ(weight_bytes(100, 2, 1), 0);
}

// A rank of 4 merges 2 of 8 heads of 5 numbers: (o, m, l) of 6 heads leave it, and (out, lse) of 2 for 3 ranks.
TEST(Volume, OfADecodedTokenIsThatOfTheLibrary) {
  EXPECT_EQ(decode_bytes(8, 5, 4, 4), 4 * (6 * (5 + 2) + 3 * 2 * (5 + 1)));
  EXPECT_EQ(decode_bytes(8, 5, 4, 1), 0);
}

TEST(StepPairs, AreThoseThatAreCountedTokenByToken) {
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag})
    for (const bool causal : {false, true})
      for (const int ranks : {1, 2, 5, 8}) {
        const Placement placement(kind, Index{6} * ranks, ranks);
        const StepFlops counted =
            forward_flops({1, 1, placement.seq(), 1}, causal ? Mask::causal() : Mask{}, placement, placement);
        const StepPairs pairs = step_pairs(kind, causal, 6);
        for (int r = 0; r < ranks; ++r)
          for (int t = 0; t < ranks; ++t)
            EXPECT_EQ(4 * pairs.at(r, t), counted[static_cast<std::size_t>(r)][static_cast<std::size_t>(t)])
                << name(kind) << ", rank " << r << ", step " << t;
      }
}

// The mutant: pairs without the diagonal, c (c - 1) / 2 of a rank's own keys.
TEST(StepPairs, WithoutTheDiagonalTheSumIsNotThatOfATriangle) {
  const StepPairs pairs = step_pairs(PlacementKind::contiguous, true, 32);
  const double triangle = 256 * 257 / 2.0;
  EXPECT_EQ(8 * pairs.own + 28 * pairs.earlier, triangle);
  EXPECT_NE(8 * (pairs.own - 32) + 28 * pairs.earlier, triangle);
}

}  // namespace
}  // namespace ring_attention::plan
