/// \file
/// Inside the reference: the dense softmax of a head.
#pragma once

#include <vector>

#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/view.hpp"

namespace ring_attention::dense {

/// |x|_4 of each row: by Cauchy and Schwarz the product of two is at least the norm of the products x_d y_d.
[[nodiscard]] Eigen::VectorXd norms_4(View<const double> array, Index batch, Index head);

/// One head: softmax(capped(scale q k^T) + bias + mask) with its sink, and what it is made of.
struct Softmax {
  Matrix<double> p;  // [rows, keys]; a row that sees no key is zero
  Matrix<double>
      errors;  // [rows, keys]: how far roundings move a score, in epsilons; 0 of a pair without weight; where p > 0
  Matrix<double> slope;  // [rows, keys]: ds / d(scale q.k); empty: 1
  Eigen::VectorXd sink;  // [rows], the probability of the sink
  Eigen::VectorXd lse;   // [rows]
  Eigen::VectorXd
      size;  // [rows]: 1 + the largest |s| with weight of a row, its products, sink and lse included
  double max_abs_score = 0;  // of what has weight
};

/// The arguments of both references.
struct DenseProblem {
  View<const double> q, k, v;
  const Scoring& scoring;
  View<const double> bias;
  Index group;                  // query heads that share a KV head
  std::vector<Index> position;  // of each row

  DenseProblem(View<const double> queries, View<const double> keys, View<const double> values,
               const Scoring& how, const TokenRanges& rows, View<const double> dense_bias);

  /// scale * q k^T, [rows, keys].
  [[nodiscard]] Matrix<double> products(Index batch, Index head) const {
    return scoring.scale * matrix(q, batch, head) * matrix(k, batch, head / group).transpose();
  }
  [[nodiscard]] Softmax softmax(Index batch, Index head) const;
  /// Multiplies a number a pair, [rows, keys], by the factors of the dropout.
  [[nodiscard]] Matrix<double> dropped(Index batch, Index head, Matrix<double> of_pairs) const;
};

}  // namespace ring_attention::dense
