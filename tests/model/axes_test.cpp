// The axes of a mesh, and sums over a group in the order of its ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "model/mesh.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

TEST(Mesh, TheFastestAxisIsTensor) {
  const MeshShape shape{2, 3, 4, 5};
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const Mesh mesh(rank, shape.ranks(), shape);
    const int t = mesh.tensor().index(rank), u = mesh.ulysses().index(rank), r = mesh.ring().index(rank),
              d = mesh.data().index(rank);
    EXPECT_EQ(rank, t + 2 * (u + 3 * (r + 4 * d)));
    EXPECT_EQ(mesh.context().index(rank), u + 3 * r);
    EXPECT_EQ(mesh.replicas().index(rank), u + 3 * (r + 4 * d));
    EXPECT_EQ(mesh.grid().ulysses.index(mesh.grid().rank), u);
    EXPECT_EQ(mesh.grid().ring.index(mesh.grid().rank), r);
  }
}

TEST(Mesh, SequencesAreSharedByTheDataAxis) {
  const MeshShape shape{1, 1, 2, 3};
  Index next = 0;
  for (int data = 0; data < 3; ++data) {
    const Interval own = Mesh(2 * data, 6, shape).sequences(7);
    EXPECT_EQ(own.begin, next);
    EXPECT_EQ(own.end, Mesh(2 * data + 1, 6, shape).sequences(7).end)
        << "the ranks of a ring have the same ones";
    next = own.end;
  }
  EXPECT_EQ(next, 7);
}

TEST(Mesh, AShapeThatDoesNotFitTheJob) {
  EXPECT_EQ(input_error([] { Mesh(0, 6, {2, 1, 2, 1}); }),
            "mesh tensor 2, ulysses 1, ring 2, data 1: it has 4 ranks, the job has 6: use four numbers whose "
            "product is 6");
  EXPECT_EQ(input_error([] { Mesh(0, 1, {1, 0, 1, 1}); }),
            "mesh tensor 1, ulysses 0, ring 1, data 1: every axis needs a rank: use 1 for an axis that is "
            "not used");
}

TEST(Sum, PiecesAreTheWhole) {
  for (const Index elements : {0, 1, 5, 12})
    for (int pieces = 1; pieces <= 7; ++pieces) {
      Index next = 0;
      for (int piece = 0; piece < pieces; ++piece) {
        const Interval own = piece_of(elements, piece, pieces);
        EXPECT_EQ(own.begin, next);
        EXPECT_LE(own.end - own.begin, elements / pieces + 1);
        next = own.end;
      }
      EXPECT_EQ(next, elements);
    }
}

/// What rank `rank` gives: numbers of many sizes, whose sum depends on the order.
std::vector<float> given(int rank, Index elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(
        random_element({.seed = 1}, {1, 1, 100, 100}, 0, 0, rank, static_cast<Index>(i)) *
        std::pow(10.0, static_cast<double>(mix(static_cast<std::uint64_t>(rank) + i) % 7)));
  return values;
}

TEST(Sum, IsInTheOrderOfTheRanksOnEveryRank) {
  for (const int ranks : {1, 2, 3, 8})
    for (const Index elements : {1, 3, 10, 100}) {
      std::vector<float> want = given(0, elements);
      for (int rank = 1; rank < ranks; ++rank) {
        const std::vector<float> term = given(rank, elements);
        std::ranges::transform(want, term, want.begin(), std::plus<>());
      }
      LoopbackWorld world(ranks);
      world.run([&](int rank) {
        PeerAllToAll group(world.peers(rank), {1, ranks});
        std::vector<float> values = given(rank, elements);
        all_reduce(group, std::span(values));
        EXPECT_EQ(values, want);
        EXPECT_EQ(all_reduce(group, static_cast<double>(rank)), ranks * (ranks - 1) / 2);
      });
    }
}

TEST(Sum, EveryRankSendsEachNumberTwice) {
  constexpr int ranks = 4;
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    PeerAllToAll group(world.peers(rank), {1, ranks});
    std::vector<double> values(40);
    all_reduce(group, std::span(values));
    EXPECT_EQ(group.statistics().bytes_sent, 2 * 30 * 8);
  });
}

TEST(Sum, PartsOfAnotherLengthAreErrors) {
  std::vector<double> all(5), own(4);
  OneRank alone;
  EXPECT_THROW(reduce_scatter(alone, std::span<const double>(all), std::span(own)), Error);
  EXPECT_THROW(all_gather(alone, std::span<const double>(own), std::span(all)), Error);
}

}  // namespace
}  // namespace ring_attention::test
