// The two layouts: slices by hand, the way there and back, the adjoint. (Bytes: ../conformance; memory:
// ../api/partitions_test.cpp.)

#include "ring_attention/parallel/collectives/heads_exchange.hpp"

#include <gtest/gtest.h>

#include "ring_attention/parallel/all_gather/all_gather.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/parallel/rank_grid.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/gradients.hpp"
#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

// ---- who holds what -----------------------------------------------------------------------------------------

TEST(Axis, OfSixRanksByHand) {
  const Axis ulysses{1, 2}, ring{2, 3};
  EXPECT_EQ(ulysses.index(5), 1);
  EXPECT_EQ(ring.index(5), 2);
  EXPECT_EQ(ulysses.group(5), 4);
  EXPECT_EQ(ring.group(5), 1);
  EXPECT_EQ(ulysses.at(5, 0), 4);
  EXPECT_EQ(ring.at(5, 0), 1);
  EXPECT_EQ(ring.ring(5).next(), 0);
  EXPECT_EQ(ring.ring(5).size, 3);
}

// Of the shard {0, 1, 2, 9, 10, 11} of a zigzag ring of two, each of three ranks holds two tokens.
TEST(Part, ASliceMayHaveTwoRanges) {
  const TokenRanges shard = Placement(PlacementKind::zigzag, 12, 2).ranges(0);
  EXPECT_EQ(positions(part(shard, 0, 3)), (std::vector<Index>{0, 1}));
  EXPECT_EQ(positions(part(shard, 1, 3)), (std::vector<Index>{2, 9}));
  EXPECT_EQ(positions(part(shard, 2, 3)), (std::vector<Index>{10, 11}));
}

TEST(Part, TheSlicesOneAfterTheOtherAreTheShard) {
  for (const PlacementKind kind : placement_kinds)
    for (Index seq = 0; seq < 40; ++seq)
      for (int ranks = 1; ranks <= 4; ++ranks)
        for (int pieces = 1; pieces <= 5; ++pieces)
          for (int rank = 0; rank < ranks; ++rank) {
            const TokenRanges shard = Placement(kind, seq, ranks).ranges(rank);
            std::vector<Index> joined;
            for (int piece = 0; piece < pieces; ++piece) {
              const TokenRanges slice = part(shard, piece, pieces);
              EXPECT_LE(std::abs(count(slice) * pieces - count(shard)), pieces);
              for (const TokenRange& range : slice) EXPECT_GT(range.count, 0);
              for (const Index position : positions(slice)) joined.push_back(position);
            }
            EXPECT_EQ(joined, positions(shard));
          }
}

TEST(RankGrid, RefusesANumberThatDoesNotDivideTheRanks) {
  expect_input_error([] { RankGrid(0, 6, 4); },
                     "Ulysses over 4 ranks: the job has 6: use a number that divides it");
  expect_input_error([] { RankGrid(0, 6, 0); }, "Ulysses over 0 ranks");
  expect_input_error([] { RankGrid(0, 2, 4); }, "the job has 2");
}

// ---- the two layouts ----------------------------------------------------------------------------------------

struct Layout {
  Shape all;
  PlacementKind kind;
  int ulysses, rings;
};

/// Calls visit(link, grid, heads of each rank, tokens of each rank, own) on every rank.
template <class Visit>
void on_every_rank(const Layout& layout, const std::vector<Interval>& heads, Visit visit) {
  const int ranks = layout.ulysses * layout.rings;
  const Placement shards(layout.kind, layout.all.seq, layout.rings);
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    const RankGrid grid(rank, ranks, layout.ulysses);
    PeerAllToAll link(world.peers(rank), grid.ulysses);
    visit(link, grid, heads, grid.tokens(shards), grid.slice(shards), grid.shard(shards));
  });
}

template <class T>
Tensor<T> numbered(const Shape& shape) {
  Tensor<T> x(shape);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(i % 1000 - 500);
  return x;
}

const std::initializer_list<Layout> layouts{
    {{2, 6, 13, 3}, PlacementKind::contiguous, 3, 2}, {{1, 6, 29, 2}, PlacementKind::zigzag, 2, 3},
    {{2, 4, 2, 5}, PlacementKind::striped, 4, 2},     {{3, 4, 8, 1}, PlacementKind::zigzag, 1, 4},
    {{1, 4, 0, 4}, PlacementKind::contiguous, 2, 2},  {{1, 8, 257, 4}, PlacementKind::zigzag, 4, 1}};

TEST(Ulysses, ARankGetsTheWholeShardOfItsHeadsInTheOrderOfItsMemory) {
  for (const Layout& layout : layouts) {
    const Tensor<float> x = numbered<float>(layout.all);
    on_every_rank(layout, shared_heads(layout.all.heads, layout.ulysses),
                  [&](auto& link, const RankGrid& grid, const auto& heads, const auto& tokens,
                      const TokenRanges& slice, const TokenRanges& shard) {
                    const Tensor<float> own = rows_of(x, slice), of_shard = rows_of(x, shard);
                    const Tensor<float> got = to_heads(link, own.view(), heads, tokens);
                    const Interval mine = heads[static_cast<std::size_t>(grid.ulysses.index(grid.rank))];
                    EXPECT_EQ(got.shape(),
                              (Shape{layout.all.batch, mine.end - mine.begin, count(shard), layout.all.dim}));
                    for (Index b = 0; b < got.shape().batch; ++b)
                      for (Index h = 0; h < got.shape().heads; ++h)
                        for (Index s = 0; s < got.shape().seq; ++s)
                          EXPECT_TRUE(std::ranges::equal(got.view().row(b, h, s),
                                                         of_shard.view().row(b, mine.begin + h, s)));
                  });
  }
}

TEST(Ulysses, ThereAndBackIsTheSameArray) {
  for (const Layout& layout : layouts) {
    const Tensor<double> x = numbered<double>(layout.all);
    on_every_rank(layout, shared_heads(layout.all.heads, layout.ulysses),
                  [&](auto& link, const RankGrid&, const auto& heads, const auto& tokens,
                      const TokenRanges& slice, const TokenRanges&) {
                    const Tensor<double> own = rows_of(x, slice);
                    const Tensor<double> all = to_heads(link, own.view(), heads, tokens);
                    EXPECT_TRUE(bitwise_equal(to_sequence(link, all.view(), heads, tokens), own));
                  });
  }
}

double dot(View<const double> a, View<const double> b) {
  return std::inner_product(a.data(), a.data() + a.size(), b.data(), 0.0);
}

// <to_heads(x), y> = <x, to_sequence(y)>, summed over the ranks. Integers: the sums are exact. Replicas, too.
TEST(Ulysses, TheTwoFunctionsAreAdjoint) {
  for (const Layout& layout : layouts)
    for (const Index kv_heads : {layout.all.heads, Index{2}, Index{1}}) {
      if (!can_share_heads(layout.all.heads, kv_heads, layout.ulysses)) continue;
      Shape all = layout.all;
      all.heads = kv_heads;
      const Tensor<double> x = numbered<double>(all);
      std::vector<double> left(static_cast<std::size_t>(layout.ulysses * layout.rings)), right(left.size());
      on_every_rank(layout, shared_heads(kv_heads, layout.ulysses),
                    [&](auto& link, const RankGrid& grid, const auto& heads, const auto& tokens,
                        const TokenRanges& slice, const TokenRanges&) {
                      const auto rank = static_cast<std::size_t>(grid.rank);
                      const Tensor<double> own = rows_of(x, slice);
                      const Tensor<double> moved = to_heads(link, own.view(), heads, tokens);
                      Tensor<double> y(moved.shape());
                      for (Index i = 0; i < y.size(); ++i)
                        y.data()[i] = static_cast<double>((i * 7 + grid.rank) % 23 - 11);
                      left[rank] = dot(moved, y);
                      right[rank] = dot(own, to_sequence(link, std::as_const(y).view(), heads, tokens));
                    });
      EXPECT_EQ(std::reduce(left.begin(), left.end()), std::reduce(right.begin(), right.end()));
    }
}

/// Links that count how often they may progress.
class CountingLinks : public PeerLinks {
 public:
  using PeerLinks::PeerLinks;
  void progress() override { ++calls; }
  Index calls = 0;
};

// An all-gather computes without a transport: a caller that is to be called between tiles hears of them from the links.
TEST(AllGather, ProgressesBetweenTheTilesOfBothPasses) {
  constexpr int ranks = 3;
  const auto problem = make_gradient_problem<float>({.queries = 90, .keys = 90});
  const Case& what = problem.what();
  const Placement tokens(what.kind, what.keys, ranks);
  const CpuDevice<float> device;
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    const RankGrid grid(rank, ranks, 1);
    const TokenRanges own = tokens.ranges(rank);
    const Tensor<float> q = rows_of(problem.forward.q, own), k = rows_of(problem.forward.k, own),
                        v = rows_of(problem.forward.v, own), grad_out = rows_of(problem.grad_out, own);
    CountingLinks links(world.peers(rank), grid.ulysses, grid.ring);
    ContextParallel<float> attention(device, links,
                                     {grid, all_gather(), tokens, what.q(), what.kv(), what.scoring});
    const AttentionResult<float> attended = attention.forward(q, k, v);
    const Index forward_calls = std::exchange(links.calls, 0);
    const BackwardInputs<float> inputs{q, attended.out, attended.lse, grad_out};
    (void)attention.backward(inputs, k, v);

    Index forward_due = 0, backward_due = 0;  // the calls of the engines
    const auto forward = device.forward(what.scoring, q, own, {}, {what.kv()});
    const auto backward = device.backward(what.scoring, inputs, own, {});
    for (int owner = 0; owner < ranks; ++owner) {
      const TokenRanges theirs = tokens.ranges(owner);
      const Tensor<float> other_k = rows_of(problem.forward.k, theirs),
                          other_v = rows_of(problem.forward.v, theirs);
      Tensor<float> grad_k(other_k.shape()), grad_v(other_v.shape());
      forward->accumulate({other_k, other_v, theirs}, [&] { ++forward_due; });
      backward->accumulate({other_k, other_v, theirs}, {grad_k, grad_v}, [&] { ++backward_due; });
    }
    EXPECT_GE(forward_due, ranks);
    EXPECT_EQ(forward_calls, forward_due);
    EXPECT_GE(backward_due, ranks);
    EXPECT_EQ(links.calls, backward_due);
  });
}

}  // namespace
}  // namespace ring_attention::test
