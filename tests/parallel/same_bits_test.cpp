// Ulysses is one device, Ulysses with a ring is the ring, all-gather is the ring: bit for bit. And all agree with the
// dense reference in double.

#include <gtest/gtest.h>

#include <set>

#include "support/input_error.hpp"
#include "support/masks.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

constexpr std::initializer_list<Team> grids{{1, 4}, {2, 2}, {4, 1}, {2, 3}, {3, 2}};
struct Heads {
  Index query, kv;
};
constexpr std::initializer_list<Heads> head_numbers{{4, 4}, {4, 2}, {4, 1}, {6, 3}, {6, 2}, {6, 1}};

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
Whole<T> heads_by_themselves(const GradientProblem<T>& problem, const Team& team, const Device<T>& device) {
  const Case& what = problem.what();
  const Problem<T>& p = problem.forward;
  const HeadShare share(what.q().heads, what.kv_heads, team.ulysses);
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
    const Whole<T> got = run(of_heads, {.rings = team.rings}, device);
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

template <class T>
class Parallel : public testing::Test {
 protected:
  /// All checks of one problem and grid. \param block  of the readable engines; 0: the fast ones
  void expect_same_bits(const GradientProblem<T>& problem, const Team& team, bool gather = true,
                        Index block = 0) {
    const Case& what = problem.what();
    SCOPED_TRACE(to_string(team) + ": " + to_string(what));
    const CpuDevice<T> device({}, block);
    const TeamRun<T> got = run(problem, team, device), ring = run(problem, {.rings = team.rings}, device);
    EXPECT_TRUE(same_bits<T>(got, heads_by_themselves(problem, team, device)));
    if (what.kv_heads % team.ulysses == 0) {
      EXPECT_TRUE(same_bits<T>(got, ring));
    } else {
      EXPECT_TRUE(same_bits(got.attended, ring.attended));
      EXPECT_TRUE(bitwise_equal(got.gradients.q, ring.gradients.q));
    }
    EXPECT_TRUE(agrees(got, problem));
    EXPECT_TRUE(sent_what_it_should(got, what, team));
    if (!gather) return;
    Team ranks{.rings = team.ranks()};
    const TeamRun<T> whole_ring = run(problem, ranks, device);
    ranks.gathers = true;
    const TeamRun<T> gathered = run(problem, ranks, device);
    EXPECT_TRUE(same_bits<T>(gathered, whole_ring));
    EXPECT_TRUE(sent_what_it_should(gathered, what, ranks));
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
  for (const Team& grid : grids)
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
    for (const Team& grid : grids) {
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
    for (const Team& grid : {Team{2, 2}, Team{2, 3}, Team{4, 1}, Team{1, 4}})
      for (const Heads& heads : {Heads{4, 4}, Heads{4, 2}, Heads{4, 1}})
        for (const Index bias_heads : {1, 2})
          this->expect_same_bits(with_everything<TypeParam>(heads, bias_heads, kind), grid, true, 5);
}

// ---- random cases -------------------------------------------------------------------------------------------

Team random_grid(Dice& dice, Index query_heads, Index kv_heads) {
  for (;;) {
    const Team grid{static_cast<int>(dice.between(1, 6)), static_cast<int>(dice.between(1, 4))};
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
