// Wrong orders in a hybrid. (Hybrids that return wrong results: ../lessons/hybrid_test.cpp.)

#include <gtest/gtest.h>

#include "ring_attention/parallel/collectives/loopback_all_to_all.hpp"
#include "ring_attention/parallel/rank_grid.hpp"
#include "support/problem.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

// With contiguous slices no test sees the mistake.
TEST(HybridMutants, APlacementOverAllRanksIsInAnotherOrder) {
  for (const PlacementKind kind : placement_kinds) {
    const Placement over_rings(kind, 24, 3), over_all_ranks(kind, 24, 6);
    bool same = true;
    for (int rank = 0; rank < 6; ++rank)
      same =
          same && positions(RankGrid(rank, 6, 2).slice(over_rings)) == positions(over_all_ranks.ranges(rank));
    EXPECT_EQ(same, kind == PlacementKind::contiguous);
  }
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
