// With whole tiles and exact sums the bits do not depend on how many ranks compute (../conformance): here at documents and
// with many tiles. The errors are those of the usual sums.

#include <gtest/gtest.h>

#include "ring_attention/attention/exact/sum.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

/// \param tile   tokens; 0: the usual sums
TeamRun<float> run_in(const GradientProblem<float>& problem, Team team, Index tile) {
  team.tile = tile;
  return run(problem, team, *make_cpu_device<float>({.same_bits = tile}));
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
  const auto packed = make_gradient_problem<float>(what);
  for (const Index tile : {2, 5, 8}) {
    SCOPED_TRACE("tiles of " + std::to_string(tile));
    const auto one = run_in(packed, {}, tile);
    for (std::size_t i = 1; i < ends.size(); ++i) {
      const TokenRanges rows{{ends[i - 1], 1, ends[i] - ends[i - 1]}};
      if (count(rows) == 0) continue;
      const auto by_itself = alone(packed, rows);
      const auto all = run_in(by_itself, {}, tile);
      EXPECT_TRUE(same_bits(all.attended, {rows_of(one.attended.out, rows), rows_of(one.attended.lse, rows)}))
          << "document " << i - 1;
      EXPECT_TRUE(same_bits(all.gradients, {rows_of(one.gradients.q, rows), rows_of(one.gradients.k, rows),
                                            rows_of(one.gradients.v, rows)}))
          << "document " << i - 1;
    }
  }
}

// A row of sums takes 1023 terms, then it must be wide: the tiles of all steps of a ring count, not those of one; for dK,dV
// those of all query heads that share a head.
TEST(AnyRanks, MoreTilesThanANarrowRowTakes) {
  constexpr Index most = ExactFormat::most_terms;
  std::vector<Case> all{{.queries = 3, .keys = most + 2, .dim = 2},
                        {.group = 4, .queries = most / 4 + 2, .keys = 3, .dim = 2}};
  for (const Index keys : {most - 1, most}) {  // a sink is one more term
    all.push_back({.queries = 3, .keys = keys, .dim = 2});
    all.back().scoring.sinks = {0.5, 0.5};
  }
  for (const Case& what : all) {
    const auto problem = make_gradient_problem<float>(what);
    const auto one = run_in(problem, {}, 1);
    EXPECT_TRUE(agrees(one, problem));
    for (const Team& team : {Team{.rings = 3}, Team{.rings = 3, .all_gathers_kv = true}})
      EXPECT_TRUE(same_bits<float>(run_in(problem, team, 1), one)) << to_string(team);
  }
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
    const auto problem = make_gradient_problem<float>(what);
    add_errors(exact, run_in(problem, {}, dice.of<Index>({16, 64, 256})), problem);
    add_errors(usual, run_in(problem, {}, 0), problem);
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
