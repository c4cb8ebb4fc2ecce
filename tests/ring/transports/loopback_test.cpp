// The ring of threads: what it moves, what it refuses, how it fails. (What its link costs: simulated_link_test.cpp of
// ring and parallel.)

#include "ring_attention/ring/transports/loopback.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

using std::chrono::milliseconds;

/// A hop of one number each way.
struct OneNumber {
  int mine = 0;
  int theirs = -1;
  Hop exchange() {
    return {std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(&theirs, 1))};
  }
};

TEST(LoopbackTransport, MovesAParcelToTheNextRank) {
  std::array<int, 5> got{};
  LoopbackWorld world(5);
  world.run([&](int rank) {
    OneNumber hop{.mine = 10 * rank};
    LoopbackTransport transport(world, rank);
    transport.start(hop.exchange());
    transport.progress();
    transport.finish();
    transport.drain();
    got[static_cast<std::size_t>(rank)] = hop.theirs;
    EXPECT_EQ(transport.ring().rank, rank);
    EXPECT_EQ(transport.ring().size, 5);
  });
  EXPECT_EQ(got, (std::array<int, 5>{40, 0, 10, 20, 30}));
}

TEST(LoopbackWorld, MessagesOfOneRankAndTagShareItsLink) {
  using Clock = std::chrono::steady_clock;
  LoopbackWorld world(3, {.bytes_per_second = 1e6});
  const std::vector<std::byte> sent(20'000);  // 20 ms
  std::array<Clock::time_point, 3> arrived;
  const Clock::time_point begin = Clock::now();
  world.run([&](int rank) {
    Peers& peers = world.peers(rank);
    if (rank == 0) {
      const auto first = peers.send(sent, 1, 0), second = peers.send(sent, 2, 0);
      first->wait();
      second->wait();
      return;
    }
    std::vector<std::byte> got(sent.size());
    peers.receive(got, 0, 0)->wait();
    arrived.at(static_cast<std::size_t>(rank)) = Clock::now();
  });
  EXPECT_GE(arrived[2] - begin, milliseconds(40));
}

TEST(LoopbackTransport, ManyHopsTakeANumberAllTheWayRound) {
  constexpr int ranks = 7;
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    int number = rank;
    LoopbackTransport transport(world, rank);
    for (int hop = 0; hop < 50 * ranks; ++hop) {
      OneNumber one{.mine = number};
      transport.start(one.exchange());
      transport.finish();
      number = one.theirs;
    }
    transport.drain();
    EXPECT_EQ(number, rank);
    EXPECT_EQ(transport.statistics().messages_sent, 50 * ranks);
    EXPECT_EQ(transport.statistics().bytes_sent, 50 * ranks * 4);
    EXPECT_EQ(transport.statistics().bytes_received, 50 * ranks * 4);
  });
}

TEST(LoopbackTransport, OfOneSendsToItself) {
  LoopbackWorld world(1);
  world.run([&](int) {
    OneNumber hop{.mine = 3};
    LoopbackTransport transport(world, 0);
    transport.start(hop.exchange());
    transport.finish();
    EXPECT_EQ(hop.theirs, 3);
  });
}

TEST(LoopbackTransport, MovesNothingWhenAParcelIsEmpty) {
  LoopbackWorld world(2);
  world.run([&](int rank) {
    LoopbackTransport transport(world, rank);
    transport.start({});
    transport.finish();
    EXPECT_EQ(transport.statistics().messages_sent, 0);
    EXPECT_EQ(transport.statistics().bytes_sent, 0);
  });
}

// ---- misuse --------------------------------------------------------------------------------------------

TEST(LoopbackTransport, MisuseIsAnError) {
  LoopbackWorld world(1);
  world.run([&](int) {
    OneNumber hop;
    LoopbackTransport transport(world, 0);
    EXPECT_NE(thrown_message([&] { transport.finish(); }).find("finish() without start()"),
              std::string::npos);
    transport.start(hop.exchange());
    EXPECT_NE(
        thrown_message([&] { transport.start(hop.exchange()); }).find("start() while a hop is under way"),
        std::string::npos);
    EXPECT_NE(thrown_message([&] { transport.drain(); }).find("drain() while a hop is under way"),
              std::string::npos);
    transport.finish();
    EXPECT_NE(thrown_message([&] { transport.finish(); }).find("finish() without start()"),
              std::string::npos);
    transport.drain();
  });
}

TEST(LoopbackTransport, AParcelOfAnotherLengthIsAnError) {
  LoopbackWorld world(2);
  const std::string message = thrown_message([&] {
    world.run([&](int rank) {
      std::array<std::byte, 8> mine{}, theirs{};
      LoopbackTransport transport(world, rank);
      transport.start({std::span(mine).first(rank == 0 ? 4 : 8), theirs});
      transport.finish();
    });
  });
  EXPECT_NE(message.find("another length"), std::string::npos) << message;
}

TEST(LoopbackTransport, LeavingInTheMiddleOfAHopIsAnError) {
  LoopbackWorld world(2);
  const std::string message = thrown_message([&] {
    world.run([&](int rank) {
      OneNumber hop;
      LoopbackTransport transport(world, rank);
      transport.start(hop.exchange());
      if (rank == 0) transport.finish();
    });
  });
  EXPECT_NE(message.find("left in the middle of a hop"), std::string::npos) << message;
}

// ---- failures ------------------------------------------------------------------------------------------

class Mishap : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Hops without end; rank `culprit` throws after `good` hops, inside one or between two.
void hop_until_mishap(LoopbackWorld& world, int rank, int culprit, int good, bool inside) {
  std::vector<std::byte> mine(4096), theirs(4096);
  LoopbackTransport transport(world, rank);
  for (int hop = 0;; ++hop) {
    if (rank == culprit && hop == good && !inside) throw Mishap("between two hops");
    transport.start({mine, theirs});
    if (rank == culprit && hop == good) throw Mishap("inside a hop");
    transport.finish();
  }
}

TEST(LoopbackWorld, AFailureWakesTheOthersAndIsTheOneThatArrives) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (const bool inside : {false, true})
      for (int good = 0; good < 20; ++good) {
        LoopbackWorld world(ranks);
        const int culprit = good % ranks;
        EXPECT_THROW(world.run([&](int rank) { hop_until_mishap(world, rank, culprit, good, inside); }),
                     Mishap);
      }
}

// A rank that the failure wakes may throw an exception of its own, and before the first one has left all functions.
TEST(LoopbackWorld, TheFirstFailureIsTheOneThatArrives) {
  struct SlowToLeave {
    ~SlowToLeave() { std::this_thread::sleep_for(std::chrono::milliseconds(slow)); }
    int slow;
  };
  for (const int slow : {0, 100}) {
    LoopbackWorld world(2);
    EXPECT_THROW(world.run([&](int rank) {
      const SlowToLeave leaves{rank * slow};
      try {
        hop_until_mishap(world, rank, 1, 3, true);
      } catch (const Error&) {
        throw std::logic_error("without the other rank");
      }
    }),
                 Mishap);
  }
}

TEST(LoopbackWorld, AFailureThatIsNoExceptionOfOursArrivesToo) {
  LoopbackWorld world(2);
  EXPECT_THROW(world.run([](int rank) {
    if (rank == 1) throw 7;  // NOLINT: any type
  }),
               int);
}

TEST(LoopbackWorld, RunsAgainAfterAFailure) {
  LoopbackWorld world(3);
  EXPECT_THROW(world.run([&](int rank) { hop_until_mishap(world, rank, 1, 2, true); }), Mishap);
  EXPECT_THROW(world.run([&](int rank) { hop_until_mishap(world, rank, 2, 0, false); }), Mishap);
  std::atomic<int> done = 0;
  world.run([&](int rank) {
    OneNumber hop{.mine = rank};
    LoopbackTransport transport(world, rank);
    transport.start(hop.exchange());
    transport.finish();
    done += hop.theirs;
  });
  EXPECT_EQ(done, 0 + 1 + 2);
}

TEST(LoopbackWorld, ATimeOutNamesTheRanks) {
  LoopbackWorld world(2, {}, milliseconds(50));
  const std::string message = thrown_message([&] {
    world.run([&](int rank) {
      if (rank == 1) return;  // never sends
      OneNumber hop;
      LoopbackTransport transport(world, rank);
      transport.start(hop.exchange());
      transport.finish();
    });
  });
  EXPECT_NE(message.find("rank 0 waiting for rank 1"), std::string::npos) << message;
  EXPECT_NE(message.find("0.05"), std::string::npos) << message;
}

TEST(LoopbackWorld, ATimeOutNamesTheRankThatDoesNotTake) {
  LoopbackWorld world(2, {}, milliseconds(50));
  const std::string message = thrown_message([&] {
    world.run([&](int rank) {
      OneNumber hop;
      LoopbackTransport transport(world, rank);
      transport.start(hop.exchange());
      if (rank == 1) std::this_thread::sleep_for(milliseconds(500));
      transport.finish();
    });
  });
  EXPECT_NE(message.find("rank 1 taking the parcel of rank 0"), std::string::npos) << message;
}

TEST(LoopbackWorld, HasAtLeastOneRank) { EXPECT_THROW(LoopbackWorld(0), Error); }

}  // namespace
}  // namespace ring_attention::test
