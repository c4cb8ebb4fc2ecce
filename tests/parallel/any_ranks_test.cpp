// With whole tiles and exact sums the bits do not depend on how many ranks and threads compute, nor on placement and
// partition; and the results agree with the dense reference in double.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ring_attention/attention/exact/sum.hpp"
#include "support/input_error.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

/// Who computes.
struct Computing {
  Team team;
  PlacementKind kind = PlacementKind::contiguous;
  int threads = 1;
};

std::string to_string(const Computing& who) {
  return to_string(who.team) + ", " + name(who.kind) + ", " + std::to_string(who.threads) + " threads";
}

/// \param tile   tokens; 0: the usual sums
/// \param block  of the readable engines; 0: the fast ones
TeamRun<float> run_in(GradientProblem<float>& problem, const Computing& who, Index tile, Index block) {
  problem.forward.what.kind = who.kind;
  Team team = who.team;
  team.tile = tile;
  return run(problem, team, CpuDevice<float>({who.threads, best_isa(), tile}, block));
}

/// A team that can have the problem.
Computing random_team(Dice& dice, const Case& what) {
  Computing who;
  Team& team = who.team;
  who.kind = dice.of({PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag});
  who.threads = static_cast<int>(dice.between(1, 3));
  team.rings = static_cast<int>(dice.of<Index>({1, 2, 3, 4, 5, 6, 7, 8, 11, 13}));
  team.gathers = dice.one_in(4);
  if (team.gathers) return who;
  team.ulysses = static_cast<int>(dice.between(1, 4));
  // The gradient of a bias that broadcasts over heads is a sum over the ranks of Ulysses.
  const bool shared_bias = what.bias_batch > 0 && what.bias_heads == 1;
  if (shared_bias || !can_share_heads(what.q().heads, what.kv_heads, team.ulysses)) team.ulysses = 1;
  if (team.ulysses > 1 && dice.one_in(2)) team.rings = 1;
  while (team.ulysses * team.rings > 13) --team.rings;
  return who;
}

/// The factors of a case, and which level of each it has.
using Levels = std::vector<std::pair<std::string, std::string>>;

Levels levels_of(const Case& what, const Computing& who, Index tile, Index block) {
  const auto yes = [](bool holds) { return std::string(holds ? "yes" : "no"); };
  const Mask& mask = what.scoring.mask;
  const Team& team = who.team;
  const int ranks = team.ranks();
  return {{"ranks", ranks > 8   ? "9 to 13"
                    : ranks > 4 ? "5 to 8"
                                : std::to_string(ranks)},
          {"placement", name(who.kind)},
          {"partition", team.gathers        ? "all-gather"
                        : team.ulysses == 1 ? "ring"
                        : team.rings == 1   ? "ulysses"
                                            : "hybrid"},
          {"threads", std::to_string(who.threads)},
          {"engine", block > 0 ? "readable" : "fast"},
          {"whole tiles", yes(what.keys % tile == 0 && what.queries % tile == 0)},
          {"as many keys as queries", yes(what.keys == what.queries)},
          {"query heads share a KV head", yes(what.group > 1)},
          {"causal", yes(mask.right == 0)},
          {"window", yes(mask.left < Mask::unlimited)},
          {"documents", yes(mask.documents != nullptr)},
          {"ALiBi", yes(what.scoring.has_alibi())},
          {"bias", yes(what.bias_batch > 0)},
          {"sinks", yes(!what.scoring.sinks.empty())},
          {"dropout", yes(what.scoring.dropout.probability > 0)}};
}

/// Which levels of two factors came together. The partition says what numbers of ranks there may be.
class Pairs {
 public:
  void add(const Levels& levels) {
    for (const auto& [a, a_level] : levels) {
      for (const auto& [b, b_level] : levels)
        if (a < b) seen_.insert(word(a, a_level) + ", " + word(b, b_level));
      levels_[a].insert(a_level);
    }
  }
  /// Of all factors.
  [[nodiscard]] std::size_t levels() const {
    std::size_t all = 0;
    for (const auto& [factor, seen] : levels_) all += seen.size();
    return all;
  }
  /// Those that never did.
  [[nodiscard]] std::set<std::string> missing() const {
    std::set<std::string> all;
    for (const auto& [a, of_a] : levels_)
      for (const auto& [b, of_b] : levels_)
        for (const std::string& i : of_a)
          for (const std::string& j : of_b)
            if (a < b && !(a == "partition" && b == "ranks")) all.insert(word(a, i) + ", " + word(b, j));
    for (const std::string& pair : seen_) all.erase(pair);
    return all;
  }

 private:
  static std::string word(const std::string& factor, const std::string& level) {
    return factor + ": " + level;
  }

  std::map<std::string, std::set<std::string>> levels_;
  std::set<std::string> seen_;
};

TEST(AnyRanks, RandomProblemsAndTeams) {
  Pairs pairs;
  Index cases = 0;
  for_each_case(120, [&](Dice& dice, Index index) {
    Case what = random_case(dice, index, 4);
    what.kv_heads = dice.between(1, 3);
    what.group = dice.between(1, 3);
    if (what.scoring.has_alibi()) what.scoring.alibi_slopes = alibi_slopes(what.q().heads);
    if (dice.one_in(4)) what.scoring.mask.left = dice.between(0, what.keys);
    if (dice.one_in(3))
      for (Index head = 0; head < what.q().heads; ++head)
        what.scoring.sinks.push_back(head % 2 == 0 ? 0.5 : -0.7);
    if (dice.one_in(3)) what.scoring.dropout = {.probability = 0.3, .seed = 5};
    if (dice.one_in(3)) {
      what.bias_batch = dice.of<Index>({1, what.batch});
      what.bias_heads = dice.of<Index>({1, what.q().heads});
    }
    auto problem = make_gradient_problem<float>(what);
    const Index tile = dice.of<Index>({1, 2, 5, 8, 16, 40}), block = dice.one_in(4) ? 3 : 0;
    SCOPED_TRACE(to_string(what) + ", tiles of " + std::to_string(tile));
    const auto one = run_in(problem, {}, tile, block);
    if (most_visible_keys(what) > 4) {  // else a gradient may be exactly 0
      EXPECT_TRUE(agrees(one, problem));
    }
    for (int i = 0; i < 3; ++i) {
      const Computing team = random_team(dice, what);
      pairs.add(levels_of(what, team, tile, block));
      const auto got = run_in(problem, team, tile, block);
      EXPECT_TRUE(same_bits<float>(got, one)) << to_string(team);
      EXPECT_TRUE(bitwise_equal(got.gradients.bias, one.gradients.bias)) << to_string(team);
    }
    ++cases;
  });
  if (cases < 120) return;  // one was chosen
  // ranks, placement, partition, threads, and eleven factors of two levels
  EXPECT_EQ(pairs.levels(), 6U + 3 + 4 + 3 + 11 * 2);
  for (const std::string& pair : pairs.missing()) ADD_FAILURE() << "never together: " << pair;
}

/// The tokens at `rows` of a problem by themselves: a sequence, with positions from 0 on.
GradientProblem<float> alone(const GradientProblem<float>& packed, const TokenRanges& rows) {
  Case what = packed.what();
  what.queries = what.keys = count(rows);
  what.scoring.mask.documents = nullptr;
  const Problem<float>& p = packed.forward;
  return make_gradient_problem(
      make_problem<float>(what, rows_of(p.q, rows), rows_of(p.k, rows), rows_of(p.v, rows)),
      rows_of(packed.grad_out, rows));
}

// No document but the empty ones is a multiple of the tile. Each has the bits that it has by itself.
TEST(AnyRanks, ATileEndsWithItsDocument) {
  const std::vector<Index> ends{0, 7, 19, 19, 20, 31};
  const Case what{.queries = 31,
                  .keys = 31,
                  .dim = 5,
                  .scoring = {0.5, Mask{.right = 0, .documents = std::make_shared<const Documents>(ends)}}};
  auto packed = make_gradient_problem<float>(what);
  for (const Index block : {0, 3})
    for (const Index tile : {2, 5, 8}) {
      SCOPED_TRACE("tiles of " + std::to_string(tile) + ", block " + std::to_string(block));
      const auto one = run_in(packed, {}, tile, block);
      for (const PlacementKind kind : placement_kinds)
        EXPECT_TRUE(same_bits<float>(run_in(packed, {{.rings = 3}, kind}, tile, block), one)) << name(kind);
      for (std::size_t i = 1; i < ends.size(); ++i) {
        const TokenRanges rows{{ends[i - 1], 1, ends[i] - ends[i - 1]}};
        if (count(rows) == 0) continue;
        auto by_itself = alone(packed, rows);
        const auto all = run_in(by_itself, {}, tile, block);
        EXPECT_TRUE(
            same_bits(all.attended, {rows_of(one.attended.out, rows), rows_of(one.attended.lse, rows)}))
            << "document " << i - 1;
        EXPECT_TRUE(same_bits(all.gradients, {rows_of(one.gradients.q, rows), rows_of(one.gradients.k, rows),
                                              rows_of(one.gradients.v, rows)}))
            << "document " << i - 1;
      }
    }
}

// A row of sums takes 1023 terms, then it must be wide: the tiles of all steps of a ring count, not those of one.
TEST(AnyRanks, MoreTilesThanANarrowRowTakes) {
  auto problem = make_gradient_problem<float>({.queries = 3, .keys = ExactFormat::most_terms + 2, .dim = 2});
  const auto one = run_in(problem, {}, 1, 0);
  EXPECT_TRUE(agrees(one, problem));
  for (const Team& team : {Team{.rings = 3}, Team{.rings = 3, .gathers = true}})
    EXPECT_TRUE(same_bits<float>(run_in(problem, {team}, 1, 0), one)) << to_string(team);
}

/// Sums of squares over all cases: of the errors, relative to the norm of each case's array.
struct Errors {
  double out = 0, lse = 0, q = 0, k = 0, v = 0;
};

double relative_square(const Tensor<float>& got, const Tensor<double>& want) {
  double error = 0, norm = 0;
  for (Index i = 0; i < want.size(); ++i) {
    const double due = want.data()[i];
    if (!std::isfinite(due)) continue;
    error += (got.data()[i] - due) * (got.data()[i] - due);
    norm += due * due;
  }
  return norm > 0 ? error / norm : 0;
}

void add_errors(Errors& sum, const Whole<float>& got, const GradientProblem<float>& problem) {
  sum.out += relative_square(got.attended.out, problem.forward.want.out);
  sum.lse += relative_square(got.attended.lse, problem.forward.want.lse);
  sum.q += relative_square(got.gradients.q, problem.want.q);
  sum.k += relative_square(got.gradients.k, problem.want.k);
  sum.v += relative_square(got.gradients.v, problem.want.v);
}

// The root mean square of the errors against double, over all cases together, beside that of the usual sums.
TEST(AnyRanks, AsAccurateAsTheUsualSums) {
  Errors exact, usual;
  for_each_case(40, [&](Dice& dice, Index index) {
    const Index tokens = dice.between(100, 400);
    const Case what{.kv_heads = 2,
                    .group = dice.between(1, 2),
                    .queries = tokens,
                    .keys = tokens,
                    .dim = dice.of<Index>({16, 24, 64}),
                    .scoring = {dice.of({0.1, 0.3, 1.0}), index % 2 == 0 ? Mask::causal() : Mask{}},
                    .seed = dice.bits()};
    auto problem = make_gradient_problem<float>(what);
    add_errors(exact, run_in(problem, {}, dice.of<Index>({16, 64, 256}), 0), problem);
    add_errors(usual, run_in(problem, {}, 0, 0), problem);
  });
  const auto ratio = [](double a, double b) { return std::sqrt(a / b); };
  EXPECT_LE(ratio(exact.out, usual.out), 1.1);
  EXPECT_LE(ratio(exact.lse, usual.lse), 1.1);
  EXPECT_LE(ratio(exact.q, usual.q), 1.1);
  EXPECT_LE(ratio(exact.k, usual.k), 1.1);
  EXPECT_LE(ratio(exact.v, usual.v), 1.1);
  std::printf("of the usual rms error: out %.3f, lse %.3f, dq %.3f, dk %.3f, dv %.3f\n",
              ratio(exact.out, usual.out), ratio(exact.lse, usual.lse), ratio(exact.q, usual.q),
              ratio(exact.k, usual.k), ratio(exact.v, usual.v));
}

}  // namespace
}  // namespace ring_attention::test
