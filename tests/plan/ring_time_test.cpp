#include "plan/ring_time.hpp"

#include <gtest/gtest.h>

namespace ring_attention {
namespace {

StepFlops flops_of(PlacementKind kind, Index seq, int ranks, const Mask& mask) {
  const Placement placement(kind, seq, ranks);
  return forward_flops({1, 1, seq, 1}, mask, placement, placement);
}

TEST(ForwardFlops, FourDForEveryPairAndQueryHead) {
  const Placement queries(PlacementKind::contiguous, 6, 2), keys(PlacementKind::contiguous, 4, 2);
  const StepFlops flops = forward_flops({2, 3, 6, 5}, {}, queries, keys);
  const double step = 4.0 * 3 * 2 * (2 * 3 * 5);  // 3 queries, 2 keys
  EXPECT_EQ(flops, (StepFlops{{step, step}, {step, step}}));
}

TEST(ForwardFlops, ACausalMaskLeavesThePairsBelowTheDiagonal) {
  // Rank 0 sees its own triangle and no key of rank 1; rank 1 its triangle and all of rank 0.
  EXPECT_EQ(flops_of(PlacementKind::contiguous, 8, 2, Mask::causal()),
            (StepFlops{{4.0 * 10, 0}, {4.0 * 10, 4.0 * 16}}));
}

TEST(ForwardFlops, CriticalPathsOfThePlacements) {
  // Lesson 09's figures at N = 8, S = 256: the critical path over the ideal.
  const auto ratio = [](PlacementKind kind) {
    const RingTime time = predict(flops_of(kind, 256, 8, Mask::causal()), 0, {1, 1});
    return time.overlapped / time.ideal;
  };
  EXPECT_NEAR(ratio(PlacementKind::contiguous), 1.872, 5e-4);
  EXPECT_NEAR(ratio(PlacementKind::striped), 1.027, 5e-4);
  EXPECT_NEAR(ratio(PlacementKind::zigzag), 1.000, 5e-4);
}

TEST(Predict, AHopIsHiddenByALongerStep) {
  const StepFlops flops{{6, 6, 6}, {3, 3, 3}, {6, 0, 0}};
  const RingTime time = predict(flops, 20, {2, 10});  // steps of 3 s, hops of 2 s
  EXPECT_DOUBLE_EQ(time.overlapped, 9);
  EXPECT_DOUBLE_EQ(time.in_turn, 13);
  EXPECT_DOUBLE_EQ(time.ideal, (9 + 4.5 + 3) / 3);
  EXPECT_DOUBLE_EQ(busiest(flops), 18);
}

TEST(Predict, AShorterStepWaitsForItsHop) {
  const RingTime time = predict({{2, 2}, {2, 2}}, 30, {2, 10});  // steps of 1 s, one hop of 3 s
  EXPECT_DOUBLE_EQ(time.overlapped, 3 + 1);
  EXPECT_DOUBLE_EQ(time.in_turn, 4 + 1);
}

TEST(Predict, OneRankHasNoHop) {
  const RingTime time = predict({{10}}, 1e9, {5, 1});
  EXPECT_DOUBLE_EQ(time.overlapped, 2);
  EXPECT_DOUBLE_EQ(time.in_turn, 2);
  EXPECT_DOUBLE_EQ(time.ideal, 2);
}

}  // namespace
}  // namespace ring_attention
