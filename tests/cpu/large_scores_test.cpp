// Scores of any size: a constant that all scores of a row have in common changes no probability, as far as the scores
// themselves are not rounded. The scores here are exact in T, as a bias or as products, so that the reference in double
// has the same.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/every_isa.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/same_bits_device.hpp"
#include "support/gradients.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

constexpr Index tokens = 150, head_dim = 8;  // two blocks of keys in float, or on a ring few queries a rank

/// How the scores of a row become large.
enum class By { bias, capped_bias, products };

template <class T>
constexpr double epsilon = std::numeric_limits<T>::epsilon();
/// The distance from |x| to the next larger T.
template <class T>
double spacing(double x) {
  return std::ldexp(epsilon<T>, std::ilogb(x == 0 ? 1 : x));
}

/// Row i has the scores shift, -shift or 0, each less some of the numbers 0 to 3 times a step.
/// \param one  one key has 0 times the step, and the step is so large that it has all the weight
template <class T>
GradientProblem<T> problem_of(By by, double shift, bool one = false) {
  const double step = one ? 1000 : 1;
  Case what{.kv_heads = 1, .queries = tokens, .keys = tokens, .dim = head_dim, .scoring = {1}, .seed = 5};
  if (by != By::products) what.bias_batch = what.bias_heads = 1;
  if (by == By::capped_bias) what.scoring.softcap = 50;
  auto [q, k, v] = random_inputs<T>(what);
  Tensor<T> bias(what.bias().value_or(Shape{}));
  std::ranges::fill(q.view().elements(), T{0});
  if (by == By::products) std::ranges::fill(k.view().elements(), T{0});
  Dice dice(1, 1);
  const auto number = [&](Index key) { return one ? key == 5 ? 0 : dice.between(1, 3) : dice.between(0, 3); };
  constexpr double most = std::numeric_limits<T>::max();
  for (Index i = 0; i < tokens; ++i) {
    const double of_row = i % 3 == 0   ? 0
                          : i % 3 == 1 ? shift
                                       : -shift,
                 unit = std::max(step, spacing<T>(of_row));
    if (by == By::products) {
      q.view()(0, 0, i, 0) = static_cast<T>(of_row);
      q.view()(0, 0, i, 1) = static_cast<T>(unit);
      k.view()(0, 0, i, 0) = 1;
      k.view()(0, 0, i, 1) = static_cast<T>(-number(i));
    }
    for (Index j = 0; j < tokens && by != By::products; ++j) {
      const double score = of_row - unit * static_cast<double>(number(j));
      bias.view()(0, 0, i, j) = score < -most ? negative_infinity<T> : static_cast<T>(score);
    }
  }
  return {make_problem<T>(what, std::move(q), std::move(k), std::move(v), std::move(bias)),
          random_grad_out<T>(what),
          {}};
}

template <class T>
double largest(const Tensor<T>& array) {
  double most = 0;
  for (const T x : array.view().elements()) most = std::max(most, static_cast<double>(std::abs(x)));
  return most;
}

/// Every |got - want| is at most bound (1 + relative |want|).
template <class T>
void expect_near(const char* name, const Tensor<T>& got, const Tensor<double>& want, double bound,
                 double relative = 0) {
  ASSERT_EQ(got.shape(), want.shape());
  for (Index i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(static_cast<double>(got.data()[i]) - want.data()[i]),
              bound * (1 + relative * std::abs(want.data()[i])))
        << name << " at " << element_name(want.shape(), i) << ": " << got.data()[i] << " for "
        << want.data()[i];
}

template <class T>
void expect_right_results(const GradientProblem<T>& problem, const TeamRun<T>& got) {
  const Problem<T>& p = problem.forward;
  const double of_out = 64 * epsilon<T> * largest(p.v);
  expect_near("out", got.attended.out, p.want.out, of_out);
  expect_near("lse", got.attended.lse, p.want.lse, 16 * epsilon<T>, 1);
}

/// The backward has p from lse, which is rounded as its type has it: so the bound grows with |lse|.
template <class T>
void expect_right_gradients(const GradientProblem<T>& problem, const TeamRun<T>& got, double largest_lse) {
  const Problem<T>& p = problem.forward;
  const auto in_double = [](const Tensor<T>& array) { return converted<double>(array); };
  const ReferenceGradients want =
      reference_backward(in_double(p.q), in_double(p.k), in_double(p.v), in_double(problem.grad_out),
                         p.what.scoring, in_double(p.bias));
  const double error = 64 * epsilon<T> * (1 + largest_lse),
               of_ds = error * head_dim * largest(p.v) * largest(problem.grad_out);
  expect_near("dq", got.gradients.q, want.q, of_ds * largest(p.k) * 4);
  expect_near("dk", got.gradients.k, want.k, of_ds * largest(p.q) * tokens);
  expect_near("dv", got.gradients.v, want.v, error * largest(problem.grad_out) * 4);
}

template <class T>
void for_each_shift(const std::function<void(By by, double shift)>& visit) {
  for (const By by : {By::bias, By::capped_bias, By::products})
    for (const double shift : {1e3, 1e6, 1e9, 1e12, static_cast<double>(std::numeric_limits<T>::max())}) {
      SCOPED_TRACE((by == By::bias       ? "bias "
                    : by == By::products ? "products "
                                         : "bias and cap ") +
                   std::to_string(shift));
      visit(by, static_cast<double>(static_cast<T>(shift)));
    }
}

template <class T>
void expect_any_size(const Device<T>& device, double most = std::numeric_limits<double>::infinity(),
                     Index tile = 0) {
  for_each_shift<T>([&](By by, double shift) {
    if (shift > most) return;
    const bool lse_is_fine = epsilon<T> * shift < 1e-3;
    const GradientProblem<T> problem = problem_of<T>(by, shift), one = problem_of<T>(by, shift, true);
    for (const int ranks : {1, 7}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      const Team team{1, ranks, false, tile};
      const TeamRun<T> got = run(problem, team, device);
      expect_right_results(problem, got);
      if (lse_is_fine) expect_right_gradients(problem, got, shift);
      const TeamRun<T> of_one = run(one, team, device);  // lse is the score of that key
      expect_right_results(one, of_one);
      expect_right_gradients(one, of_one, 0);
    }
  });
}

TEST(LargeScores, FastInFloat) {
  for_each_isa([](Isa isa) { expect_any_size<float>(CpuDevice<float>({.isa = isa})); });
}
TEST(LargeScores, FastInDouble) {
  for_each_isa([](Isa isa) { expect_any_size<double>(CpuDevice<double>({.isa = isa})); });
}
TEST(LargeScores, Readable) {
  expect_any_size<float>(ReadableDevice<float>({}, 32));
  expect_any_size<double>(ReadableDevice<double>({}, 32));
}
TEST(LargeScores, SameBits) {
  for_each_isa([](Isa isa) { expect_any_size<float>(SameBitsDevice({.isa = isa, .same_bits = 8}), 1e9, 8); });
}

/// The exponents of exact sums end at 2e9: NaN, not the weight of another score.
TEST(LargeScores, SameBitsEndInNan) {
  const GradientProblem<float> problem = problem_of<float>(By::bias, 3e9);
  const auto expect_nan = [&](const Device<float>& device) {
    const TeamRun<float> got = run(problem.forward, Team{1, 3, false, 8}, device);
    for (Index i = 0; i < tokens; ++i) {
      EXPECT_EQ(std::isnan(got.attended.lse.view()(0, 0, i)), i % 3 == 1) << i;
      EXPECT_EQ(std::isnan(got.attended.out.view()(0, 0, i, 0)), i % 3 == 1) << i;
    }
  };
  for_each_isa([&](Isa isa) { expect_nan(SameBitsDevice({.isa = isa, .same_bits = 8})); });
}

/// Two results of different keys, merged.
TEST(LargeScores, Partials) {
  for_each_isa([](Isa isa) {
    for_each_shift<float>([&](By by, double shift) {
      const GradientProblem<float> problem = problem_of<float>(by, shift);
      const Problem<float>& p = problem.forward;
      const auto of_keys = [&](Index begin, Index end) {
        const TokenRanges keys{{begin, 1, end - begin}};
        CpuEngine<float> engine(p.what.scoring, {.isa = isa});
        engine.begin(p.q, whole(tokens), {p.bias});
        engine.accumulate({rows_of(p.k, keys), rows_of(p.v, keys), keys});
        return engine.to_partial();
      };
      Partial<float> all = of_keys(0, 40);
      merge(all, of_keys(40, tokens));
      TeamRun<float> got;
      got.attended = finish(std::move(all));
      expect_right_results(problem, got);
    });
  });
}

}  // namespace
}  // namespace ring_attention::test
