// Each mistake in the pairs of kernels 0 and 1 is noticed by the check that the right kernels pass.

#include <gtest/gtest.h>

#include "cuda/cuda_runs.hpp"
#include "cuda/mutants/mistake.hpp"

namespace ring_attention::test {
namespace {

using Pieces = std::vector<TokenRanges>;
const Pieces in_one{whole(80)}, in_steps{{{1, 2, 40}}, {{0, 2, 40}}};

/// A bias that all heads and batches share, and one row of it hides all keys.
GradientProblem<float> problem_with(Index bias_heads) {
  Case what{.batch = 2,
            .kv_heads = 1,
            .group = 2,
            .queries = 70,
            .keys = 80,
            .dim = 8,
            .scoring = {0.4},
            .bias_batch = 1,
            .bias_heads = bias_heads};
  what.scoring.dropout = {.probability = 0.3, .seed = 5};
  what.scoring.softcap = 0.9;
  auto problem = make_gradient_problem<float>(what);
  Problem<float>& p = problem.forward;
  std::ranges::fill(p.bias.view().row(0, 0, 3), negative_infinity<float>);
  p = make_problem<float>(what, p.q.clone(), p.k.clone(), p.v.clone(), p.bias.clone());
  problem.want =
      reference_backward(converted<double>(p.q), converted<double>(p.k), converted<double>(p.v),
                         converted<double>(problem.grad_out), what.scoring, converted<double>(p.bias));
  return problem;
}

struct Verdict {
  bool naive, tiled, backward;
  friend bool operator==(const Verdict&, const Verdict&) = default;
};
std::ostream& operator<<(std::ostream& to, const Verdict& verdict) {
  return to << "naive " << verdict.naive << ", tiled " << verdict.tiled << ", backward " << verdict.backward;
}
constexpr Verdict right{true, true, true}, wrong{false, false, false};
constexpr Verdict wrong_backward{true, true, false};

/// Which kernels agree with the reference.
Verdict with(Mistake wanted, const Pieces& pieces = in_steps, Index bias_heads = 1) {
  static const GradientProblem<float> shared = problem_with(1), each = problem_with(2);
  const GradientProblem<float>& problem = bias_heads == 1 ? shared : each;
  mistake = wanted;
  const auto forward = [&](const char* kernel) {
    const TokenRanges rows = whole(70);
    return bool(agrees_in(0, forward_in_pieces<float>(problem.forward, pieces, {.kernel = kernel}, rows),
                          problem.forward, rows));
  };
  const Verdict verdict{
      forward("naive"), forward("tiled"),
      bool(gradients_agree_in(0, backward_in_pieces<float>(problem, pieces, {.kernel = "tiled"}), problem))};
  mistake = Mistake::none;
  return verdict;
}

TEST(KernelMutants, NoMistakeAgrees) {
  EXPECT_EQ(with(Mistake::none), right);
  EXPECT_EQ(with(Mistake::none, in_one, 2), right);
}

TEST(KernelMutants, IndicesInTheShardAreNoticedInPiecesOnly) {
  for (const Mistake mistake : {Mistake::columns_of_the_shard, Mistake::positions_of_the_shard}) {
    EXPECT_EQ(with(mistake), wrong);
    EXPECT_EQ(with(mistake, in_one), right) << "one piece does not show it";
  }
}

TEST(KernelMutants, WrongBiasesAreNoticed) {
  EXPECT_EQ(with(Mistake::bias_times_scale), wrong);
  EXPECT_EQ(with(Mistake::bias_in_other_units), wrong);
  EXPECT_EQ(with(Mistake::bias_of_one_head, in_steps, 2), wrong);
  EXPECT_EQ(with(Mistake::bias_of_one_head), right) << "a bias that all heads share does not show it";
  EXPECT_EQ(with(Mistake::unguarded_weight), wrong_backward);
}

TEST(KernelMutants, ABiasGradientOfOneHeadIsNoticed) {
  EXPECT_EQ(with(Mistake::bias_gradient_of_one_head), wrong_backward);
}

TEST(KernelMutants, WrongDropoutsAreNoticed) {
  EXPECT_EQ(with(Mistake::mask_of_one_head), wrong);
  EXPECT_EQ(with(Mistake::mask_of_one_batch), wrong);
  EXPECT_EQ(with(Mistake::drops_before_softmax), wrong);
  EXPECT_EQ(with(Mistake::scales_twice), wrong);
  EXPECT_EQ(with(Mistake::no_scale), wrong);
  EXPECT_EQ(with(Mistake::masks_gradient_of_scores), wrong_backward);
  EXPECT_EQ(with(Mistake::gradient_without_dropout), wrong_backward);
}

// Kernel 0 caps before it has pairs.
TEST(KernelMutants, WrongCapsAreNoticed) {
  EXPECT_EQ(with(Mistake::cap_in_other_units), (Verdict{true, false, false}));
  EXPECT_EQ(with(Mistake::gradient_without_cap), wrong_backward);
}

}  // namespace
}  // namespace ring_attention::test
