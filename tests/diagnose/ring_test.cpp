// The simulated ring: with right rules it agrees with the dense reference, in every case, placement and direction; with
// a mistake it does not, in some case.
#include "diagnose/ring.hpp"

#include <gtest/gtest.h>

#include <set>

#include "diagnose/mistakes/mistake.hpp"
#include "diagnose/residual.hpp"
#include "ring_attention/core/compare.hpp"

namespace ring_attention::diagnose {
namespace {

constexpr std::array placements{PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag};

Comparison compared(const Arrays& got, const Problem& problem, Array array) {
  const double size = array == Array::lse ? 1e4 : 100;
  return compare(got[array], problem.right[array], {.absolute = 1e-13 * size, .relative = 1e-10},
                 {.allow_negative_infinity = array == Array::lse});
}

TEST(Ring, WithRightRulesAgreesWithTheReference) {
  for (const PlacementKind placement : placements)
    for (const auto& [ranks, ulysses] : {std::pair(1, 1), {2, 1}, {3, 1}, {4, 1}, {4, 2}, {3, 3}, {6, 2}})
      for (const Case& one : ladder({ranks, placement, ulysses}))
        for (const int direction : {1, -1}) {
          const Problem problem(one, {ranks, placement, ulysses}, 1);
          Rules rules;
          rules.direction = direction;
          const Forward forward = simulate_forward(problem, rules);
          const Arrays gradients = simulate_backward(problem, rules, forward);
          const std::string where = one.name + ", " + std::to_string(ranks) + " ranks, " + name(placement);
          for (const Array array : of_forward) {
            const Comparison result = compared(forward.arrays, problem, array);
            EXPECT_TRUE(result.ok) << where << ", " << name(array) << ": " << describe(result);
          }
          for (const Array array : of_backward) {
            const Comparison result = compared(gradients, problem, array);
            EXPECT_TRUE(result.ok) << where << ", " << name(array) << ": " << describe(result);
          }
        }
}

// Those that are not marked as directed are tried in one direction only.
TEST(Mistakes, DependOnTheDirectionOnlyWhereTheySaySo) {
  for (const PlacementKind placement : placements)
    for (const Case& one : ladder({4, placement}))
      for (const Mistake& mistake : all_mistakes()) {
        if (mistake.directed || one.large_scores) continue;  // there rounding differs by more
        const Problem problem(one, {4, placement}, 1);
        const Yardstick yardstick(problem);
        Rules forth, back;
        mistake.edit(forth);
        mistake.edit(back);
        back.direction = -1;
        const Forward a = simulate_forward(problem, forth), b = simulate_forward(problem, back);
        const Arrays c = simulate_backward(problem, forth, a), d = simulate_backward(problem, back, b);
        for (const auto& [x, y] : {std::pair(&a.arrays, &b.arrays), {&c, &d}})
          for (const double error : yardstick.largest(*x, *y))
            EXPECT_LT(error, 1e-6) << mistake.id << ", " << one.name << ", " << name(placement);
      }
}

TEST(Mistakes, HaveALineAndAnEditEach) {
  std::set<std::string> ids, sentences;
  for (const Mistake& mistake : all_mistakes()) {
    EXPECT_NE(mistake.edit, nullptr) << mistake.id;
    EXPECT_TRUE(ids.insert(mistake.id).second) << mistake.id;
    EXPECT_TRUE(sentences.insert(mistake.says).second) << mistake.says;
  }
  EXPECT_GE(ids.size(), 100U);
}

}  // namespace
}  // namespace ring_attention::diagnose
