// The clocks in a trace whose ranks are Peers, on one machine and on several.

#include "io/trace_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/temporary_directory.hpp"

namespace {

std::atomic<int> ranks_of_a_machine{4};
thread_local int rank_here = 0;

}  // namespace

/// Each thread is a rank, and knows the name of its machine.
extern "C" int gethostname(char* name, std::size_t length) {
  std::snprintf(name, length, "machine%d", rank_here / ranks_of_a_machine);
  return 0;
}

namespace ring_attention::test {
namespace {

using Json = nlohmann::json;

/// What 4 ranks say of their clocks in a trace, of which a killed job has left a file.
std::vector<Json> clocks(int ranks_of_one) {
  ranks_of_a_machine = ranks_of_one;
  const TemporaryDirectory directory;
  const std::string file = directory / "t.json";
  std::ofstream(file + ".rank7") << "left";
  LoopbackWorld world(4);
  world.run([&](int rank) {
    rank_here = rank;
    TraceFile(std::make_unique<PeerAllToAll>(world.peers(rank), Axis{1, 4}), file).join();
  });
  std::vector<Json> found;
  for (const Json& event : Json::parse(std::ifstream(file)))
    if (event.at("name") == "clock") found.push_back(event.at("args"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
  EXPECT_EQ(found.size(), 4);
  return found;
}

TEST(TraceOfPeers, RanksOfOneMachineShareItsClock) {
  for (const Json& clock : clocks(4)) {
    EXPECT_EQ(clock.at("offset_us"), 0.0);
    EXPECT_EQ(clock.at("round_trip_us"), 0.0);
  }
}

TEST(TraceOfPeers, AnotherMachineHasAnOffset) {
  const std::vector<Json> found = clocks(2);
  EXPECT_EQ(found.at(1), found.at(0));
  EXPECT_EQ(found.at(3), found.at(2));
  EXPECT_EQ(found.at(0).at("round_trip_us"), 0.0);
  const double round_trip = found.at(2).at("round_trip_us");
  EXPECT_GT(round_trip, 0);
  EXPECT_LE(std::abs(found.at(2).at("offset_us").get<double>()), round_trip / 2 + 1);  // it is the same clock
}

TEST(TraceOfPeers, AnOffsetIsAddedToTheOwnClock) {
  const Trace trace(0, 1, [](const std::string&) {}, {.seconds = 5});
  EXPECT_GE(trace.now(), 5e6);
}

}  // namespace
}  // namespace ring_attention::test
