#include "plan/network.hpp"

#include <gtest/gtest.h>

namespace ring_attention::plan {
namespace {

/// Links of 1 byte/s inside, of 1/4 byte/s between nodes, without latency.
Machine machine(Index node, Index nics) {
  Machine m;
  m.node = node;
  m.nics = nics;
  m.link = {0, 1};
  m.nic = {0, 0.25};
  return m;
}

TEST(Flows, OneMessageAlone) {
  std::vector<Flow> flows{{{0, 1}, 6}};
  EXPECT_DOUBLE_EQ(run_flows({{0.5, 2}, {0.25, 3}}, flows), 0.5 + 6.0 / 2);
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

}  // namespace
}  // namespace ring_attention::plan
