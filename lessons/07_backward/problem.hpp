// Lesson 07: a problem with its forward, and the finite differences of its loss.
#pragma once

#include LESSON_IDEA

#include <functional>

#include "common/random_problem.hpp"
#include "ring_attention/attention/blockwise.hpp"

namespace ring_attention::lesson {

using Array = Tensor<double>;

/// L = sum(out * grad_out): the number whose gradients are asked for.
inline double loss(const Array& q, const Array& k, const Array& v, const Array& grad_out,
                   const Scoring& scoring) {
  const Reference forward = reference_forward(q, k, v, scoring);
  return matrix(forward.out.view(), 0, 0).cwiseProduct(matrix(grad_out.view(), 0, 0)).sum();
}

/// dL/dx by central differences, one element of x at a time.
inline Array finite_differences(Array& x, const std::function<double()>& value) {
  constexpr double step = 1e-5;
  Array slope(x.shape());
  for (Index i = 0; i < x.size(); ++i) {
    const double here = x.data()[i];
    x.data()[i] = here + step;
    const double above = value();
    x.data()[i] = here - step;
    slope.data()[i] = (above - value()) / (2 * step);
    x.data()[i] = here;
  }
  return slope;
}

inline double relative_error(const Matrix<double>& got, const Array& want) {
  const auto right = matrix(want.view(), 0, 0);
  return (got - right).norm() / right.norm();
}

struct Forward {
  Array q, k, v, grad_out;
  AttentionResult<double> result;
};

inline Forward forward(const RandomProblem& problem) {
  const Index seq = problem.q.seq;
  Forward f{problem.queries<double>(whole(seq)),
            problem.keys<double>(),
            problem.values<double>(),
            problem.make<double>(problem.q, 3, whole(seq)),
            {}};
  f.result = blockwise_forward<double>(f.q, f.k, f.v, problem.scoring);
  return f;
}

inline HeadGradients by_hand(const Forward& f, double scale, Index block, const Mistakes& mistakes) {
  const auto head = [](const Array& array) { return matrix(array.view(), 0, 0); };
  return backward_by_hand(head(f.q), head(f.k), head(f.v), head(f.result.out), head(f.grad_out),
                          f.result.lse.data(), scale, block, mistakes);
}

}  // namespace ring_attention::lesson
