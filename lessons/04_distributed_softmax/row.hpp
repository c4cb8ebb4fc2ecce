// Lesson 04: one row of scores in pieces on the ranks, and what is done with a piece.
#pragma once

#include LESSON_IDEA

#include "common/lesson.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention::lesson {

// Scores of a seeded row, near -10200 and a few of them spiked: softmax depends on their differences only.
inline Tensor<float> scores(const Lesson& lesson, Index seq, const TokenRanges& ranges) {
  Tensor<float> x({1, 1, count(ranges), 1});
  fill_random(x.view(), {.seed = lesson.seed(), .spike_every = 100}, {1, 1, seq, 1}, ranges);
  for (float& score : x.view().elements()) score -= 10200;
  return x;
}

// Lesson 02: one pass over the scores of a rank.
inline State state_of(const Tensor<float>& x) {
  State state;
  for (const float score : x.view().elements()) state = merge(state, softmax_state(score));
  return state;
}

// p = e^{x - m} / l
inline Tensor<float> normalised(const Tensor<float>& x, const State& state) {
  Tensor<float> p(x.shape());
  for (Index i = 0; i < x.size(); ++i)
    p.data()[i] = state.l != 0 ? rescale(x.data()[i], state.m) / state.l : 0;
  return p;
}

inline double sum_over_row(const Tensor<float>& p, const Communicator& comm) {
  double sum = matrix(p.view(), 0, 0).cast<double>().sum();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, comm.handle()));
  return sum;
}

// The reference: what a dense softmax of the whole row, in double, gives at `ranges`.
inline Tensor<double> dense_softmax(const Tensor<float>& row, const TokenRanges& ranges) {
  const Vector<double> x = matrix(row.view(), 0, 0).cast<double>();
  const Vector<double> e = (x.array() - x.maxCoeff()).exp();
  Tensor<double> part({1, 1, count(ranges), 1});
  Index i = 0;
  for (const Index position : positions(ranges)) part.data()[i++] = e[position] / e.sum();
  return part;
}

}  // namespace ring_attention::lesson
