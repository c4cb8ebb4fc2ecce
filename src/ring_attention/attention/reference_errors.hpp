/// \file
/// Inside the reference: the dense softmax of a head, and what rounding can do to what is computed from it. Users of
/// the reference include reference.hpp alone.
#pragma once

#include <vector>

#include "ring_attention/attention/reference.hpp"
#include "ring_attention/core/eigen.hpp"

namespace ring_attention::dense {

[[nodiscard]] double max_abs(View<const double> array);
/// |x|_4 of each row: by Cauchy and Schwarz the product of two is at least the norm of the products x_d y_d.
[[nodiscard]] Eigen::VectorXd norms_4(View<const double> array, Index batch, Index head);
[[nodiscard]] Eigen::VectorXd norms(View<const double> array, Index batch, Index head);

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

/// Fills the rows of one head of result.of_out and of_lse. \param kept  F * p
void find_errors(const DenseProblem& problem, const Softmax& softmax, const Matrix<double>& kept, Index batch,
                 Index head, bool of_inputs, Reference& result);

/// How far roundings move ds, in epsilons: p and what it weighs by the size of the scores, dp and delta by their terms,
/// which do not cancel. A delta is wrong in the same way for a whole row.
/// \param terms  F * |dO| |V|^T
[[nodiscard]] Matrix<double> roundings_of(const Softmax& softmax, const Matrix<double>& dp,
                                          const Eigen::VectorXd& delta, const Matrix<double>& terms);

/// Adds what one head of queries gives to result.sizes and result.inputs. \param kept  F * p
void add_squares(const DenseProblem& problem, const Softmax& softmax, const Matrix<double>& kept,
                 const Matrix<double>& ds, View<const double> grad_out, Index batch, Index head,
                 ReferenceGradients& result);

}  // namespace ring_attention::dense
