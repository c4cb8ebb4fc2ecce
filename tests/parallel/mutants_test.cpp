// Wrong variants of the hybrid that look right: the check that the right one passes fails for each.

#include <gtest/gtest.h>

#include "support/hybrid_mutants.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

template <class Rules>
testing::AssertionResult hybrid_agrees(const Case& what, int ulysses, int rings) {
  const auto problem = make_gradient_problem<double>(what);
  const Rules rules;
  return agrees(run(problem, {ulysses, rings}, CpuDevice<double>(), {.rules = rules}), problem);
}

/// 24 tokens: slices of one length on 4, 6 and 8 ranks.
Case case_of(Index kv_heads, Index group, PlacementKind kind) {
  return {.kv_heads = kv_heads,
          .group = group,
          .queries = 24,
          .keys = 24,
          .scoring = {0.5, Mask::causal()},
          .kind = kind};
}

TEST(HybridMutants, InterleavedHeadsBreakTheGroups) {
  const Case what = case_of(2, 2, PlacementKind::contiguous);
  EXPECT_TRUE(hybrid_agrees<HybridRules>(what, 2, 2));
  EXPECT_FALSE(hybrid_agrees<HeadsInterleaved>(what, 2, 2));
  EXPECT_TRUE(hybrid_agrees<HeadsInterleaved>(case_of(4, 1, PlacementKind::contiguous), 1, 4))
      << "a mutant that is right in a group of one";
}

TEST(HybridMutants, TheFirstReplicaIsNotTheSum) {
  const Case what = case_of(2, 2, PlacementKind::zigzag);
  EXPECT_TRUE(hybrid_agrees<HybridRules>(what, 4, 1));
  EXPECT_FALSE(hybrid_agrees<FirstReplicaOnly>(what, 4, 1));
  EXPECT_TRUE(hybrid_agrees<FirstReplicaOnly>(what, 2, 2)) << "no replicas: nothing to sum";
}

TEST(HybridMutants, APlacementOverAllRanksIsInAnotherOrder) {
  for (const PlacementKind kind : {PlacementKind::striped, PlacementKind::zigzag}) {
    const Case what = case_of(2, 2, kind);
    EXPECT_TRUE(hybrid_agrees<HybridRules>(what, 2, 3));
    EXPECT_FALSE(hybrid_agrees<PlacedOverTheWorld>(what, 2, 3));
  }
  EXPECT_TRUE(hybrid_agrees<PlacedOverTheWorld>(case_of(2, 2, PlacementKind::contiguous), 2, 3))
      << "contiguous slices are the same ones: no test of the order";
}

TEST(HybridMutants, SwappedAxesShowWhereTheirSizesDiffer) {
  const Case what = case_of(6, 1, PlacementKind::zigzag);
  EXPECT_TRUE(hybrid_agrees<HybridRules>(what, 2, 3));
  EXPECT_FALSE(hybrid_agrees<AxesSwapped>(what, 2, 3));
  EXPECT_FALSE(hybrid_agrees<AxesSwapped>(what, 3, 2));
  EXPECT_TRUE(hybrid_agrees<AxesSwapped>(what, 2, 2)) << "a square grid hides it";
}

// Each rank of a grid of 2 x 2 is on two lines. Where the ranks call in one order, all exchanges end. Where 1 and 2 call
// in the other order, 0 waits for 1, 1 for 3, 3 for 2 and 2 for 0.
TEST(HybridMutants, TwoLinesInAnotherOrderOnSomeRanksWaitForEachOther) {
  const auto exchange_on_both = [](bool one_order) {
    LoopbackWorld world(4, {}, std::chrono::milliseconds(200));
    world.run([&](int rank) {
      LoopbackAllToAll row(world, rank, {1, 2}), column(world, rank, {2, 2});
      const Pieces empty{{{}, {}}, {{}, {}}};
      const bool column_first = !one_order && (rank == 1 || rank == 2);
      if (column_first) column.all_to_all(empty);
      row.all_to_all(empty);
      if (!column_first) column.all_to_all(empty);
    });
  };
  EXPECT_NO_THROW(exchange_on_both(true));
  const std::string message = thrown_message([&] { exchange_on_both(false); });
  EXPECT_NE(message.find("took more than"), std::string::npos) << message;
}

}  // namespace
}  // namespace ring_attention::test
