// The all-to-all of threads: what it moves, what it refuses, how it fails. (What its link costs: simulated_link_test.cpp.)

#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

#include <gtest/gtest.h>

#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

/// Piece i for rank i is the number 100 * rank + i, i + 1 times.
struct Numbers {
  std::vector<std::vector<int>> mine, theirs;

  Numbers(int rank, int size) {
    for (int other = 0; other < size; ++other) {
      mine.emplace_back(other + 1, 100 * rank + other);
      theirs.emplace_back(rank + 1, -1);
    }
  }
  Pieces pieces() {
    Pieces all;
    for (const auto& piece : mine) all.send.push_back(std::as_bytes(std::span(piece)));
    for (auto& piece : theirs) all.receive.push_back(std::as_writable_bytes(std::span(piece)));
    return all;
  }
  void expect_right(int rank) const {
    for (int other = 0; other < static_cast<int>(theirs.size()); ++other)
      for (const int number : theirs[static_cast<std::size_t>(other)]) EXPECT_EQ(number, 100 * other + rank);
  }
};

TEST(PeerAllToAll, MovesEveryPieceManyTimes) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    LoopbackWorld world(ranks);
    world.run([&](int rank) {
      PeerAllToAll link(world.peers(rank), {1, ranks});
      for (int time = 0; time < 20; ++time) {
        Numbers numbers(rank, ranks);
        link.all_to_all(numbers.pieces());
        numbers.expect_right(rank);
      }
      EXPECT_EQ(link.statistics().messages_sent, 20 * (ranks - 1));
      EXPECT_EQ(link.statistics().bytes_sent, 20 * 4 * (ranks * (ranks + 1) / 2 - (rank + 1)));
      EXPECT_EQ(link.statistics().bytes_received, 20 * 4 * (rank + 1) * (ranks - 1));
    });
  }
}

// A grid of 2 x 3: all rows, then all columns, and a ring along the columns meanwhile.
TEST(PeerAllToAll, LinesOfAGridDoNotMeet) {
  LoopbackWorld world(6);
  world.run([&](int rank) {
    for (const Axis& axis : {Axis{1, 2}, Axis{2, 3}}) {
      PeerAllToAll link(world.peers(rank), axis);
      EXPECT_EQ(link.rank(), axis.index(rank));
      EXPECT_EQ(link.size(), axis.size);
      int sent = rank;
      std::vector<int> got(static_cast<std::size_t>(axis.size), -1);
      Pieces pieces;
      for (int& number : got) {
        pieces.send.push_back(std::as_bytes(std::span(&sent, 1)));
        pieces.receive.push_back(std::as_writable_bytes(std::span(&number, 1)));
      }
      link.all_to_all(pieces);
      for (int other = 0; other < axis.size; ++other)
        EXPECT_EQ(got[static_cast<std::size_t>(other)], axis.at(rank, other));
      LoopbackTransport ring(world, rank, 0, axis);
      int theirs = -1;
      ring.start({std::as_bytes(std::span(&sent, 1)), std::as_writable_bytes(std::span(&theirs, 1))});
      ring.finish();
      ring.drain();
      EXPECT_EQ(theirs, axis.at(rank, axis.ring(rank).prev()));
    }
  });
}

TEST(PeerAllToAll, PiecesOfAnotherLengthAreAnError) {
  LoopbackWorld world(2);
  const std::string message = thrown_message([&] {
    world.run([&](int rank) {
      PeerAllToAll link(world.peers(rank), {1, 2});
      Numbers numbers(rank, 2);
      Pieces pieces = numbers.pieces();
      if (rank == 0) pieces.send[1] = pieces.send[1].first(4);
      link.all_to_all(pieces);
    });
  });
  EXPECT_NE(message.find("another length"), std::string::npos) << message;
}

TEST(PeerAllToAll, APieceForEveryRank) {
  LoopbackWorld world(1);
  PeerAllToAll link(world.peers(0), {1, 1});
  EXPECT_NE(thrown_message([&] { link.all_to_all({}); }).find("one piece for each rank"), std::string::npos);
}

TEST(PeerAllToAll, ARankThatNeverComesIsNamed) {
  LoopbackWorld world(3, {}, std::chrono::milliseconds(100));
  const std::string message = thrown_message([&] {
    world.run([&](int rank) {
      PeerAllToAll link(world.peers(rank), {1, 3});
      Numbers numbers(rank, 3);
      if (rank != 1) link.all_to_all(numbers.pieces());
    });
  });
  EXPECT_NE(message.find("waiting for rank 1"), std::string::npos) << message;
}

TEST(PeerAllToAll, AFailureOfOneRankEndsTheWaitsOfAll) {
  LoopbackWorld world(3);
  const std::string message = thrown_message([&] {
    world.run([&](int rank) {
      if (rank == 2) throw Error("rank 2 has failed");
      PeerAllToAll link(world.peers(rank), {1, 3});
      Numbers numbers(rank, 3);
      link.all_to_all(numbers.pieces());
    });
  });
  EXPECT_EQ(message, "rank 2 has failed");
}

}  // namespace
}  // namespace ring_attention::test
