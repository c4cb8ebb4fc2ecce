// The gradients of a problem, their reference, and the one check against it.
#pragma once

#include "ring_attention/attention/blockwise_backward.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {

/// A problem, a dO, and the results of dense attention in double for the same numbers.
template <class T>
struct GradientProblem {
  Problem<T> forward;
  Tensor<T> grad_out;
  ReferenceGradients want;

  [[nodiscard]] const Case& what() const { return forward.what; }
};

/// dO.
template <class T>
Tensor<T> random_grad_out(const Case& what);

template <class T>
GradientProblem<T> make_gradient_problem(Problem<T> forward, Tensor<T> grad_out);

template <class T>
GradientProblem<T> make_gradient_problem(const Case& what);

/// The most keys that a query of this case sees. With one, its softmax is constant: dQ = dK = 0 is meant.
Index most_visible_keys(const Case& what);

template <class T>
testing::AssertionResult grad_q_agrees(const Tensor<T>& got, const GradientProblem<T>& problem);

template <class T>
testing::AssertionResult grad_k_agrees(const Tensor<T>& got, const GradientProblem<T>& problem);

template <class T>
testing::AssertionResult grad_v_agrees(const Tensor<T>& got, const GradientProblem<T>& problem);

template <class T>
testing::AssertionResult grad_bias_agrees(const Tensor<T>& got, const GradientProblem<T>& problem);

/// The gradients of sinks, as an array of one number a head.
Tensor<double> as_tensor(std::span<const double> numbers);

template <class T>
testing::AssertionResult numbers_agree(const TermNumbers& got, const GradientProblem<T>& problem,
                                       double unit = 0);

/// Do dQ, dK and dV of the whole problem agree with the reference, and dbias and dsinks where it has them?
template <class T>
testing::AssertionResult agrees(const Gradients<T>& got, const GradientProblem<T>& problem);

/// The same bits in dQ, dK and dV.
template <class T>
testing::AssertionResult same_bits(const Gradients<T>& a, const Gradients<T>& b);

/// The single device: forward, then backward.
template <class T>
Gradients<T> device_gradients(const GradientProblem<T>& problem);

}  // namespace ring_attention::test
