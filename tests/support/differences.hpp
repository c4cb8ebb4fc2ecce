// Gradients by finite differences of the dense reference.
#pragma once

#include "support/gradients.hpp"

namespace ring_attention::test {

/// The number of which all these gradients are: L = sum(out * dO).
inline double loss(const Problem<double>& problem, const Tensor<double>& grad_out) {
  const Reference forward =
      reference_forward(problem.q, problem.k, problem.v, problem.what.scoring, problem.bias);
  double sum = 0;
  for (Index i = 0; i < grad_out.size(); ++i) sum += forward.out.data()[i] * grad_out.data()[i];
  return sum;
}

/// (L(x + h) - L(x - h)) / 2h, where x is a number of the problem.
inline double slope(const GradientProblem<double>& problem, double& x) {
  constexpr double h = 1e-5;  // the error h^2 L''' / 6 and the rounding error eps L / h both are about 1e-10
  const double at = x;
  x = at + h;
  const double above = loss(problem.forward, problem.grad_out);
  x = at - h;
  const double below = loss(problem.forward, problem.grad_out);
  x = at;
  return (above - below) / (2 * h);
}

/// The slope for every element of `array`, which is one of the problem's own.
inline Tensor<double> central_differences(const GradientProblem<double>& problem, Tensor<double>& array) {
  Tensor<double> slopes(array.shape());
  for (Index i = 0; i < array.size(); ++i) slopes.data()[i] = slope(problem, array.data()[i]);
  return slopes;
}

/// ||got - want|| / ||want|| below 1e-7: one tensor at a time, so that an error in one is not hidden by the others.
inline testing::AssertionResult near(const Tensor<double>& got, const Tensor<double>& want) {
  const Comparison comparison = compare(got, want, {.absolute = 1e-4});  // finite, not all zero
  if (comparison.ok && comparison.relative_error < 1e-7) return testing::AssertionSuccess();
  return testing::AssertionFailure() << describe(comparison);
}

inline void expect_gradients_of_the_loss(GradientProblem<double>& problem) {
  const Tensor<double> q = central_differences(problem, problem.forward.q);
  const Tensor<double> k = central_differences(problem, problem.forward.k);
  const Tensor<double> v = central_differences(problem, problem.forward.v);
  EXPECT_TRUE(near(problem.want.q, q)) << "dq, dense";
  EXPECT_TRUE(near(problem.want.k, k)) << "dk, dense";
  EXPECT_TRUE(near(problem.want.v, v)) << "dv, dense";
  const Gradients<double> tiled = device_gradients(problem);
  EXPECT_TRUE(near(tiled.q, q)) << "dq, tiled";
  EXPECT_TRUE(near(tiled.k, k)) << "dk, tiled";
  EXPECT_TRUE(near(tiled.v, v)) << "dv, tiled";
  if (problem.forward.bias.size() > 0) {
    const Tensor<double> bias = central_differences(problem, problem.forward.bias);
    EXPECT_TRUE(near(problem.want.bias, bias)) << "dbias, dense";
    EXPECT_TRUE(near(tiled.bias, bias)) << "dbias, tiled";
  }
  if (problem.what().scoring.sinks.empty()) return;
  std::vector<double> slopes;
  slopes.reserve(problem.forward.what.scoring.sinks.size());
  for (double& sink : problem.forward.what.scoring.sinks) slopes.push_back(slope(problem, sink));
  const Tensor<double> sinks = as_tensor(slopes);
  EXPECT_TRUE(near(as_tensor(problem.want.sinks), sinks)) << "dsinks, dense";
  EXPECT_TRUE(near(as_tensor(tiled.sinks), sinks)) << "dsinks, tiled";
}

}  // namespace ring_attention::test
