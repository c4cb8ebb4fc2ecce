#include "support/gradients.hpp"

#include <algorithm>

#include "support/gradient_bound.hpp"

namespace ring_attention::test {

template <class T>
Tensor<T> random_grad_out(const Case& what) {
  Tensor<T> grad_out(what.out());
  fill_random(grad_out.view(), {.seed = what.seed, .stream = 3});
  return grad_out;
}

template <class T>
GradientProblem<T> make_gradient_problem(Problem<T> forward, Tensor<T> grad_out) {
  ReferenceGradients want = reference_backward(converted<double>(forward.q), converted<double>(forward.k),
                                               converted<double>(forward.v), converted<double>(grad_out),
                                               forward.what.scoring, converted<double>(forward.bias));
  return {std::move(forward), std::move(grad_out), std::move(want)};
}

template <class T>
GradientProblem<T> make_gradient_problem(const Case& what) {
  return make_gradient_problem(make_problem<T>(what), random_grad_out<T>(what));
}

Index most_visible_keys(const Case& what) {
  Index most = 0;
  for (Index query = 0; query < what.queries; ++query) {
    Index seen = 0;
    for (Index key = 0; key < what.keys; ++key)
      if (what.scoring.mask.allowed(query, key)) ++seen;
    most = std::max(most, seen);
  }
  return most;
}

namespace {

/// A softmax between scores this far apart may be constant in double, too.
constexpr double saturating_score = 100;

template <class T>
bool softmax_is_constant(const GradientProblem<T>& problem) {
  return most_visible_keys(problem.what()) <= 1 || problem.want.max_abs_score > saturating_score;
}
template <class T>
bool no_key_is_visible(const GradientProblem<T>& problem) {
  return most_visible_keys(problem.what()) == 0;
}

template <class T>
testing::AssertionResult gradient_agrees(const char* name, const Tensor<T>& got, const Tensor<double>& want,
                                         Index terms, double magnitude, const GradientErrors& errors,
                                         bool (*may_be_zero)(const GradientProblem<T>&),
                                         const GradientProblem<T>& problem, Index columns = 0) {
  const bool zero =
      want.size() > 0 && std::ranges::all_of(want.view().elements(), [](double x) { return x == 0; });
  const Tolerance tolerance = gradient_tolerance<T>(terms, problem.want.max_abs_score, magnitude);
  const Comparison comparison = compare(got, want, tolerance, {.expect_zero = zero && may_be_zero(problem)});
  auto verdict = is_near(name, judged_by_norm<T>(comparison, tolerance.absolute, errors, 0, terms, columns));
  if (!verdict) verdict << "\n  " << to_string(problem.what());
  return verdict;
}

}  // namespace

template <class T>
testing::AssertionResult grad_q_agrees(const Tensor<T>& got, const GradientProblem<T>& problem) {
  return gradient_agrees("dq", got, problem.want.q, problem.what().keys, problem.want.magnitude_q,
                         {problem.want.roundings_q, problem.want.sizes.q}, softmax_is_constant, problem);
}

template <class T>
testing::AssertionResult grad_k_agrees(const Tensor<T>& got, const GradientProblem<T>& problem) {
  return gradient_agrees("dk", got, problem.want.k, problem.what().queries * problem.what().group,
                         problem.want.magnitude_k, {problem.want.roundings_k, problem.want.sizes.k},
                         softmax_is_constant, problem);
}

template <class T>
testing::AssertionResult grad_v_agrees(const Tensor<T>& got, const GradientProblem<T>& problem) {
  return gradient_agrees("dv", got, problem.want.v, problem.what().queries * problem.what().group,
                         problem.want.magnitude_v, {problem.want.roundings_v, problem.want.sizes.v},
                         no_key_is_visible, problem, problem.what().dim);
}

template <class T>
testing::AssertionResult grad_bias_agrees(const Tensor<T>& got, const GradientProblem<T>& problem) {
  const Index terms = problem.what().keys + problem.what().batch * problem.what().q().heads;
  return gradient_agrees("dbias", got, problem.want.bias, terms, problem.want.magnitude_bias,
                         {problem.want.roundings_bias, problem.want.sizes.bias}, softmax_is_constant,
                         problem);
}

Tensor<double> as_tensor(std::span<const double> numbers) {
  Tensor<double> array({1, 1, std::ssize(numbers), 1});
  std::ranges::copy(numbers, array.data());
  return array;
}

template <class T>
testing::AssertionResult numbers_agree(const TermNumbers& got, const GradientProblem<T>& problem,
                                       double unit) {
  auto verdict = testing::AssertionSuccess();
  each_number(
      [&](const char* name, auto numbers, auto want, auto magnitudes) {
        if (want.empty() || !verdict) return;
        const double magnitude = std::ranges::max(magnitudes);
        Tolerance tolerance = gradient_tolerance<T>(problem.what().queries * problem.what().batch,
                                                    problem.want.max_abs_score, magnitude);
        const double of_type = tolerance.absolute;
        tolerance.absolute += unit * magnitude;
        const Comparison comparison =
            compare(as_tensor(numbers), as_tensor(want), tolerance,
                    {.expect_zero = std::ranges::all_of(want, [](double x) { return x == 0; })});
        verdict =
            is_near(("d" + std::string(name)).c_str(), judged_by_norm<T>(comparison, of_type, {}, unit));
        if (!verdict) verdict << "\n  " << to_string(problem.what());
      },
      got, problem.want, problem.want.magnitudes);
  return verdict;
}

template <class T>
testing::AssertionResult agrees(const Gradients<T>& got, const GradientProblem<T>& problem) {
  if (const auto verdict = grad_q_agrees(got.q, problem); !verdict) return verdict;
  if (const auto verdict = grad_k_agrees(got.k, problem); !verdict) return verdict;
  if (const auto verdict = grad_v_agrees(got.v, problem); !verdict) return verdict;
  if (problem.forward.bias.size() > 0)
    if (const auto verdict = grad_bias_agrees(got.bias, problem); !verdict) return verdict;
  return numbers_agree(got, problem);
}

template <class T>
testing::AssertionResult same_bits(const Gradients<T>& a, const Gradients<T>& b) {
  if (!bitwise_equal(a.q, b.q)) return testing::AssertionFailure() << "dq differs in its bits";
  if (!bitwise_equal(a.k, b.k)) return testing::AssertionFailure() << "dk differs in its bits";
  if (!bitwise_equal(a.v, b.v)) return testing::AssertionFailure() << "dv differs in its bits";
  if (!bitwise_equal(a.bias, b.bias)) return testing::AssertionFailure() << "dbias differs in its bits";
  auto verdict = testing::AssertionSuccess();
  each_number(
      [&](const char* name, auto one, auto other) {
        if (!std::ranges::equal(one, other))
          verdict = testing::AssertionFailure() << "d" << name << " differs in its bits";
      },
      a, b);
  return verdict;
}

template <class T>
Gradients<T> device_gradients(const GradientProblem<T>& problem) {
  const Problem<T>& p = problem.forward;
  const AttentionResult<T> attended =
      blockwise_forward<T>(p.q, p.k, p.v, p.what.scoring, p.what.block, p.bias);
  return blockwise_backward<T>({p.q, attended.out, attended.lse, problem.grad_out, p.bias}, p.k, p.v,
                               p.what.scoring, p.what.block);
}

#define RING_ATTENTION_INSTANTIATE(T)                                                              \
  template Tensor<T> random_grad_out(const Case&);                                                 \
  template GradientProblem<T> make_gradient_problem(Problem<T>, Tensor<T>);                        \
  template GradientProblem<T> make_gradient_problem(const Case&);                                  \
  template testing::AssertionResult grad_q_agrees(const Tensor<T>&, const GradientProblem<T>&);    \
  template testing::AssertionResult grad_k_agrees(const Tensor<T>&, const GradientProblem<T>&);    \
  template testing::AssertionResult grad_v_agrees(const Tensor<T>&, const GradientProblem<T>&);    \
  template testing::AssertionResult grad_bias_agrees(const Tensor<T>&, const GradientProblem<T>&); \
  template testing::AssertionResult agrees(const Gradients<T>&, const GradientProblem<T>&);        \
  template testing::AssertionResult same_bits(const Gradients<T>&, const Gradients<T>&);           \
  template Gradients<T> device_gradients(const GradientProblem<T>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE
template testing::AssertionResult numbers_agree(const TermNumbers&, const GradientProblem<float>&, double);

template testing::AssertionResult numbers_agree(const TermNumbers&, const GradientProblem<double>&, double);

}  // namespace ring_attention::test
