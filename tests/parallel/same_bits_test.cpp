// Ulysses is one device, Ulysses with a ring is the ring, all-gather is the ring: bit for bit. And all agree with the
// dense reference in double.

#include <gtest/gtest.h>

#include <set>

#include "support/input_error.hpp"
#include "support/masks.hpp"
#include "support/parallel_runs.hpp"

namespace ring_attention::test {
namespace {

struct Grid {
  int ulysses, rings;
};
constexpr std::initializer_list<Grid> grids{{1, 4}, {2, 2}, {4, 1}, {2, 3}, {3, 2}};
struct Heads {
  Index query, kv;
};
constexpr std::initializer_list<Heads> head_numbers{{4, 4}, {4, 2}, {4, 1}, {6, 3}, {6, 2}, {6, 1}};

std::string to_string(const Grid& grid, const Case& what) {
  return "U = " + std::to_string(grid.ulysses) + ", R = " + std::to_string(grid.rings) + ": " +
         to_string(what);
}

/// Rows of x: heads [begin, end) of it.
template <class T>
Tensor<T> some_heads(const Tensor<T>& x, const Interval& heads) {
  const Shape& all = x.shape();
  Tensor<T> some({all.batch, heads.end - heads.begin, all.seq, all.dim});
  const View<const T> from = x;
  for (Index batch = 0; batch < all.batch; ++batch)
    std::copy_n(from.head(batch, heads.begin), some.size() / all.batch, some.view().head(batch, 0));
  return some;
}

/// Adds `part` to the heads of `all` from the first on. \param first  copies instead
template <class T>
void add_heads(Tensor<T>& all, const Tensor<T>& part, const Interval& heads, bool first) {
  const View<const T> from = part;
  const Index elements = part.size() / part.shape().batch;
  for (Index batch = 0; batch < part.shape().batch; ++batch) {
    T* to = all.view().head(batch, heads.begin);
    const T* term = from.head(batch, 0);
    for (Index i = 0; i < elements; ++i) to[i] = first ? term[i] : to[i] + term[i];
  }
}

/// What must come out: a ring over the heads of each rank of Ulysses by themselves; dK and dV of a head that several ranks
/// have are added in the order of the ranks. Without messages between the heads.
template <class T>
Whole<T> heads_by_themselves(const GradientProblem<T>& problem, int ulysses, int rings,
                             const Engines<T>& engines) {
  const Case& what = problem.what();
  const Problem<T>& p = problem.forward;
  const HeadShare share(what.q().heads, what.kv_heads, ulysses);
  Whole<T> all = zeros<T>(what);
  for (std::size_t u = 0; u < share.query.size(); ++u) {
    const Interval query = share.query[u], kv = share.kv[u];
    const bool shared_bias = what.bias_heads == 1;
    Case part = what;
    part.kv_heads = kv.end - kv.begin;
    part.group = (query.end - query.begin) / part.kv_heads;
    part.scoring = what.scoring.of_heads(query);
    if (what.bias_batch > 0 && !shared_bias) part.bias_heads = query.end - query.begin;
    const Interval bias_heads = shared_bias ? Interval{0, 1} : query;
    const GradientProblem<T> of_heads{{part,
                                       some_heads(p.q, query),
                                       some_heads(p.k, kv),
                                       some_heads(p.v, kv),
                                       {},
                                       p.bias.size() > 0 ? some_heads(p.bias, bias_heads) : Tensor<T>()},
                                      some_heads(problem.grad_out, query),
                                      {}};
    const Whole<T> got = whole_ring(of_heads, rings, engines);
    const bool first = u == 0 || share.kv[u - 1].end <= kv.begin;
    add_heads(all.attended.out, got.attended.out, query, true);
    add_heads(all.attended.lse, got.attended.lse, query, true);
    add_heads(all.gradients.q, got.gradients.q, query, true);
    add_heads(all.gradients.k, got.gradients.k, kv, first);
    add_heads(all.gradients.v, got.gradients.v, kv, first);
    if (p.bias.size() > 0)
      add_heads(all.gradients.bias, got.gradients.bias, bias_heads, u == 0 || !shared_bias);
    std::ranges::copy(got.gradients.sinks,
                      all.gradients.sinks.begin() + (got.gradients.sinks.empty() ? 0 : query.begin));
  }
  return all;
}

/// The bytes of a rank in the all-to-all of one array, sent and received: a sum over the slices.
struct Bytes {
  Index sent = 0, received = 0;
};

/// \param reverse  to_sequence
Bytes bytes_of(const RankGrid& grid, const Placement& tokens, const std::vector<Interval>& heads,
               Index row_bytes, bool reverse) {
  const std::vector<Index> slices = grid.tokens(tokens);
  const auto own = static_cast<std::size_t>(grid.ulysses.index(grid.rank));
  const auto size = [&](std::size_t rank) { return heads[rank].end - heads[rank].begin; };
  Bytes bytes;
  for (std::size_t rank = 0; rank < heads.size(); ++rank)
    if (rank != own) {
      bytes.sent += size(rank) * slices[own] * row_bytes;
      bytes.received += size(own) * slices[rank] * row_bytes;
    }
  if (reverse) std::swap(bytes.sent, bytes.received);
  return bytes;
}

template <class T>
testing::AssertionResult sent_what_it_should(const ParallelResult<T>& result, const Case& what,
                                             const RankGrid& grid) {
  const Placement queries(what.kind, what.queries, grid.ring.size),
      keys(what.kind, what.keys, grid.ring.size);
  const HeadShare share(what.q().heads, what.kv_heads, grid.ulysses.size);
  const Index element = what.batch * static_cast<Index>(sizeof(T)), row = what.dim * element;
  Bytes forward;
  const auto add = [](Bytes& sum, const Bytes& term, Index times) {
    sum = {sum.sent + times * term.sent, sum.received + times * term.received};
  };
  add(forward, bytes_of(grid, queries, share.query, row, false), 1);     // q
  add(forward, bytes_of(grid, keys, share.kv, row, false), 2);           // k, v
  add(forward, bytes_of(grid, queries, share.query, row, true), 1);      // out
  add(forward, bytes_of(grid, queries, share.query, element, true), 1);  // lse
  Bytes both = forward;
  add(both, bytes_of(grid, queries, share.query, row, false), 1);  // dO
  add(both, bytes_of(grid, queries, share.query, row, true), 1);   // dQ
  add(both, bytes_of(grid, keys, share.kv, row, true), 2);         // dK, dV
  const auto counted = [](const TransportStatistics& got, const Bytes& due) {
    return got.bytes_sent == due.sent && got.bytes_received == due.received;
  };
  if (what.bias_batch == 0 && !(counted(result.forward_pieces, forward) && counted(result.pieces, both)))
    return testing::AssertionFailure()
           << "all-to-all of rank " << grid.rank << ": sent " << result.forward_pieces.bytes_sent << " and "
           << result.pieces.bytes_sent << " bytes where " << forward.sent << " and " << both.sent
           << " were due";
  Case ring = what;  // the ring moves the K,V heads of one rank
  ring.kv_heads = share.kv.front().end - share.kv.front().begin;
  const RankGradients<T> channels{{}, result.kv, result.gradient};
  GradientProblem<T> of_ring;
  of_ring.forward.what = ring;
  const Ring line = grid.ring.ring(grid.rank);
  if (const auto verdict = sent_what_it_should(result.forward_kv, of_ring.forward, line); !verdict)
    return verdict;
  return sent_what_it_should(channels, of_ring, line);
}

template <class T>
class Parallel : public testing::Test {
 protected:
  /// All checks of one problem and grid.
  void expect_same_bits(const GradientProblem<T>& problem, const Grid& grid, bool gather = true,
                        const Engines<T>& engines = fast_engines<T>) {
    const Case& what = problem.what();
    SCOPED_TRACE(to_string(grid, what));
    const auto results = run_loopback_hybrid(problem, grid.ulysses, grid.rings, engines);
    const Whole<T> got = gathered(results, what, grid.ulysses);
    EXPECT_TRUE(same_bits(got, heads_by_themselves(problem, grid.ulysses, grid.rings, engines)));
    const Whole<T> ring = whole_ring(problem, grid.rings, engines);
    if (what.kv_heads % grid.ulysses == 0) {
      EXPECT_TRUE(same_bits(got, ring));
    } else {
      EXPECT_TRUE(same_bits(got.attended, ring.attended));
      EXPECT_TRUE(bitwise_equal(got.gradients.q, ring.gradients.q));
    }
    EXPECT_TRUE(agrees(got, problem));
    const int ranks = grid.ulysses * grid.rings;
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_TRUE(sent_what_it_should(results[static_cast<std::size_t>(rank)], what,
                                      RankGrid(rank, ranks, grid.ulysses)));
    if (!gather) return;
    EXPECT_TRUE(same_bits(gathered(run_loopback_all_gather(problem, ranks, engines), what, 1),
                          whole_ring(problem, ranks, engines)));
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Parallel, Types);

Case with_heads(const Heads& heads, Index tokens, PlacementKind kind, const Scoring& scoring = {0.5}) {
  return {.kv_heads = heads.kv,
          .group = heads.query / heads.kv,
          .queries = tokens,
          .keys = tokens,
          .dim = 3,
          .scoring = scoring,
          .block = 5,
          .kind = kind};
}

// Each length, number of heads and grid once; placements and masks in turn.
TYPED_TEST(Parallel, EveryGridOfRanksAndNumberOfHeads) {
  std::size_t turn = 0;
  int refused = 0;
  for (const Grid& grid : grids)
    for (const Heads& heads : head_numbers)
      for (const Index tokens : {13, 29, 2, 257}) {
        if (!can_share_heads(heads.query, heads.kv, grid.ulysses)) {
          const std::string message = input_error([&] { HeadShare(heads.query, heads.kv, grid.ulysses); });
          EXPECT_NE(message.find(": use 1, "), std::string::npos) << message;
          ++refused;
          continue;
        }
        const auto scorings = every_scoring(tokens, tokens, heads.query, 0.5);
        const PlacementKind kind = placement_kinds.begin()[turn % 3];
        this->expect_same_bits(
            make_gradient_problem<TypeParam>(with_heads(heads, tokens, kind, scorings[turn % 11].scoring)),
            grid, turn % 5 == 0);
        ++turn;
      }
  EXPECT_GT(refused, 0);
  EXPECT_GE(turn, 60U);
}

// At every grid; three ranks share six heads, the others share four.
TYPED_TEST(Parallel, EveryPlacementAndMask) {
  for (const PlacementKind kind : placement_kinds)
    for (const Grid& grid : grids) {
      const Heads heads = grid.ulysses == 3 ? Heads{6, 3} : Heads{4, 2};
      for (const auto& [name, scoring] : every_scoring(13, 13, heads.query, 0.5)) {
        SCOPED_TRACE(name);
        this->expect_same_bits(make_gradient_problem<TypeParam>(with_heads(heads, 13, kind, scoring)), grid,
                               grid.rings == 3);
      }
    }
}

/// What the readable engine computes: a bias, sinks and dropout by head of the layer.
template <class T>
GradientProblem<T> with_everything(const Heads& heads, Index bias_heads, PlacementKind kind) {
  Case what = with_heads(heads, 13, kind, every_scoring(13, 13, heads.query, 0.5).back().scoring);
  what.batch = 2;
  what.bias_batch = what.bias_heads = 1;
  if (bias_heads > 1) what.bias_heads = heads.query;
  for (Index head = 0; head < heads.query; ++head)
    what.scoring.sinks.push_back(0.3 * static_cast<double>(head) - 0.5);
  what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 1, .layer = 2};
  return make_gradient_problem<T>(what);
}

TYPED_TEST(Parallel, SlopesBiasSinksAndDropoutAreThoseOfTheHeadsOfTheLayer) {
  for (const PlacementKind kind : placement_kinds)
    for (const Grid& grid : {Grid{2, 2}, Grid{2, 3}, Grid{4, 1}, Grid{1, 4}})
      for (const Heads& heads : {Heads{4, 4}, Heads{4, 2}, Heads{4, 1}})
        for (const Index bias_heads : {1, 2})
          this->expect_same_bits(with_everything<TypeParam>(heads, bias_heads, kind), grid, true,
                                 readable_engines<TypeParam>);
}

// ---- random cases -------------------------------------------------------------------------------------------

Grid random_grid(Dice& dice, Index query_heads, Index kv_heads) {
  for (;;) {
    const Grid grid{static_cast<int>(dice.between(1, 6)), static_cast<int>(dice.between(1, 4))};
    if (can_share_heads(query_heads, kv_heads, grid.ulysses) && grid.ulysses * grid.rings <= 8) return grid;
  }
}

TYPED_TEST(Parallel, RandomProblems) {
  for_each_case(170, [&](Dice& dice, Index index) {
    Case what = random_case(dice, index, 4);
    what.every_hop = true;
    what.kv_heads = dice.between(1, 4);
    what.group = dice.between(1, 3);
    if (what.scoring.has_alibi()) what.scoring.alibi_slopes = alibi_slopes(what.q().heads);
    this->expect_same_bits(make_gradient_problem<TypeParam>(what),
                           random_grid(dice, what.q().heads, what.kv_heads), index % 4 == 0);
  });
}

}  // namespace
}  // namespace ring_attention::test
