#include "benchmarks/dense.hpp"

#include "ring_attention/core/eigen.hpp"
#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {

DenseEigen::DenseEigen(const DenseProblem& problem, int threads)
    : problem_(problem), threads_(threads), scores_({1, 1, problem.q.shape().seq, problem.q.shape().seq}) {}

void DenseEigen::operator()() {
  const Index seq = problem_.q.shape().seq;
  for (Index h = 0; h < problem_.q.shape().heads; ++h)
    for_each_task(threads_, threads_, [&](Index part, int) {
      const Index first = seq * part / threads_, rows = seq * (part + 1) / threads_ - first;
      auto s = matrix(scores_.view(), 0, 0, first, rows);
      s.noalias() =
          problem_.scale * matrix(problem_.q, 0, h, first, rows) * matrix(problem_.k, 0, h).transpose();
      for (Index i = 0; i < rows; ++i) {
        auto row = s.row(i).array();
        row = (row - row.maxCoeff()).exp();
        row /= row.sum();
      }
      matrix(problem_.out, 0, h, first, rows).noalias() = s * matrix(problem_.v, 0, h);
    });
}

}  // namespace ring_attention
