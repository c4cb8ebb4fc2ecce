/// \file
/// Inside the reference: what rounding can do to what is computed from a dense softmax. Users of the reference include
/// reference.hpp alone.
#pragma once

#include "ring_attention/attention/dense_softmax.hpp"
#include "ring_attention/attention/reference.hpp"

namespace ring_attention::dense {

[[nodiscard]] double max_abs(View<const double> array);
[[nodiscard]] Eigen::VectorXd norms(View<const double> array, Index batch, Index head);

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
