#include "plan/network.hpp"

#include <gtest/gtest.h>

#include "plan/ring_recurrence.hpp"

namespace ring_attention::plan {
namespace {

/// Links of 1 byte/s inside, of 1/4 byte/s between nodes, without latency.
Machine machine(Index node, Index nics, double alpha = 0) {
  Machine m;
  m.node = node;
  m.nics = nics;
  m.link = {alpha, 1};
  m.nic = {alpha, 0.25};
  return m;
}

TEST(Flows, OneMessageAlone) {
  std::vector<Flow> flows{{{0, 1}, 6, 2}};
  EXPECT_DOUBLE_EQ(run_flows({{0.5, 2}, {0.25, 3}}, flows), 2 + 0.5 + 6.0 / 2);
}

TEST(Flows, TwoMessagesShareALinkOneAfterTheOther) {
  std::vector<Flow> flows{{{0, 1}, 6}, {{0, 2}, 6}};
  run_flows({{0, 2}, {0, 2}, {0, 2}}, flows);
  EXPECT_DOUBLE_EQ(flows[0].arrived, 3);
  EXPECT_DOUBLE_EQ(flows[1].arrived, 6);
}

TEST(Flows, AFastLinkServesTheNextMessageBeforeASlowOneEnds) {
  std::vector<Flow> flows{{{0, 1}, 6}, {{0, 2}, 6}};  // the first goes on over a slow link
  run_flows({{0, 2}, {0, 1}, {0, 2}}, flows);
  EXPECT_DOUBLE_EQ(flows[0].arrived, 6);
  EXPECT_DOUBLE_EQ(flows[1].arrived, 3 + 3);
}

TEST(Flows, AMessageWaitsForTheOneBeforeIt) {
  std::vector<Flow> flows{{{0}, 4}, {{1}, 4, 0, 0}, {{2}, 4, 11, 0}};
  run_flows({{0, 2}, {0, 2}, {0, 2}}, flows);
  EXPECT_DOUBLE_EQ(flows[1].arrived, 4);
  EXPECT_DOUBLE_EQ(flows[2].arrived, 13);
}

TEST(Network, PathsInsideAndBetweenNodes) {
  const Network network(machine(2, 1), 4);
  EXPECT_EQ(network.links().size(), 2 * 4 + 2 * 2);
  EXPECT_EQ(network.path(0, 1).size(), 2);
  EXPECT_EQ(network.path(1, 2).size(), 4);
  EXPECT_EQ(network.path(0, 2)[1], network.path(1, 3)[1]) << "one NIC";
  const Network two(machine(2, 2), 4);
  EXPECT_NE(two.path(0, 2)[1], two.path(1, 3)[1]) << "a NIC each";
}

TEST(AllToAll, InANodeItTakesTheBytesOfOneRank) {
  for (const int ranks : {1, 2, 3, 8})
    EXPECT_DOUBLE_EQ(all_to_all_seconds(machine(8, 8), ranks, 5), (ranks - 1) * 5.0);
}

TEST(AllToAll, OneNicIsSharedByTheRanksOfItsNode) {
  // Two nodes of two: each NIC carries 2 x 2 pieces. A NIC a rank carries 2.
  EXPECT_GE(all_to_all_seconds(machine(2, 1), 4, 1), 4 / 0.25);
  EXPECT_LE(all_to_all_seconds(machine(2, 1), 4, 1), 4 / 0.25 + 3);
  EXPECT_GE(all_to_all_seconds(machine(2, 2), 4, 1), 2 / 0.25);
  EXPECT_LE(all_to_all_seconds(machine(2, 2), 4, 1), 3 / 0.25) << "one message of waiting more";
}

// The mutant: every rank has the whole NIC of its node. It would take what a NIC a rank takes.
TEST(AllToAll, ANicForEachRankIsNotWhatANodeHas) {
  EXPECT_GT(all_to_all_seconds(machine(8, 1), 16, 1), 3 * all_to_all_seconds(machine(8, 8), 16, 1));
}

TEST(AllGather, IsARingOfHopsAtTheSpeedOfTheSlowest) {
  EXPECT_DOUBLE_EQ(all_gather_seconds(machine(8, 8), 8, 3), 7 * 3.0);
  EXPECT_DOUBLE_EQ(all_gather_seconds(machine(8, 8, 0.5), 8, 3), 7 * 3.5);
  EXPECT_DOUBLE_EQ(all_gather_seconds(machine(2, 2), 4, 1), 3 * 4.0);
  EXPECT_DOUBLE_EQ(all_gather_seconds(machine(8, 8), 1, 3), 0);
}

TEST(AllGather, IsARingWithoutComputing) {
  const double hops = ring_seconds(8, 8, 7, [](int, int) { return 0.0; }, [](int, int) { return 3.0; });
  EXPECT_DOUBLE_EQ(all_gather_seconds(machine(8, 8), 8, 3), hops);
}

TEST(DoubleRing, TheNodesShareTheirNics) {
  // Two nodes of two, hops of 1 s inside; a parcel takes 4 s between nodes. Steps of 2 s: two turns of 4 s, and the
  // parcels between the nodes are just hidden with a NIC a rank; with one for two they take 8 s.
  EXPECT_DOUBLE_EQ(double_ring_seconds(machine(2, 2), 2, 2, 1), 4 + 4);
  EXPECT_DOUBLE_EQ(double_ring_seconds(machine(2, 1), 2, 2, 1), 8 + 4);
  EXPECT_DOUBLE_EQ(double_ring_seconds(machine(2, 2), 1, 2, 1), 4);
}

TEST(DoubleRing, BeatsAPlainRingWhereANicIsSlowerThanAStep) {
  // Plain: every step waits for the hop between nodes, 4 s. Double: steps of 2 s hide it.
  const double plain = ring_seconds(
      4, 4, 3, [](int, int) { return 2.0; }, [](int r, int) { return r == 0 || r == 2 ? 4.0 : 1.0; });
  EXPECT_GT(plain, 3 * 2.5 + 2);
  EXPECT_LT(double_ring_seconds(machine(2, 2), 2, 2, 1), plain);
}

}  // namespace
}  // namespace ring_attention::plan
