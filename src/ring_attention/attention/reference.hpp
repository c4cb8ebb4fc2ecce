/// \file
/// The reference, the oracle of all checks: dense attention in double with Eigen, in its simplest form.
#pragma once

#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// The result in double, and what a tolerance needs to know about the problem.
struct Reference {
  Tensor<double> out;  ///< [batch, heads, rows, value_dim]
  Tensor<double> lse;  ///< [batch, heads, rows, 1]
  double max_abs_score =
      0;  ///< the largest |s| that has weight: not e^-104 times less than the largest of its row
  double max_abs_value = 0;  ///< max |v|
  /// What rounding can do to a row. An error e_j of the score s_j moves lse by sum_j p_j e_j, and so p_j by p_j (e_j - that)
  /// and out = sum_j p_j F_j v_j by sum_j p_j e_j (F_j v_j - out). So a pair without weight counts for nothing, however
  /// large its score, and neither does the score of a pair that has all the weight. In epsilons, with x = scale q.k,
  /// e_j is as large as s_j, as capped(x), and by the slope of the cap, 1 - tanh^2, as x and as the sum of its terms
  /// q_d k_d; relative errors of K have random signs, as have the terms, so that their sum is as large as the norm of the
  /// terms, and at most |q|_4 |k|_4. These errors may be the same for all keys: that moves lse, not out.
  RowErrors of_out = {}, of_lse = {};
};

/// out = (F * softmax(scale q k^T + bias + mask)) v, one dense score matrix per head, with the sinks and the factors F
/// of the dropout of `scoring`.
///
/// \param q  [batch, heads, rows, dim]; its rows are at the global positions `rows`
/// \param k  [batch, kv_heads, keys, dim]; all keys, at the positions 0 .. keys-1
/// \param v  [batch, kv_heads, keys, value_dim]
/// \param bias  [batch or 1, heads or 1, rows, keys], or empty
/// \param of_inputs  fills RowErrors::inputs
///
/// Query head h uses KV head h / (heads / kv_heads). Memory: rows * keys * 8 bytes.
/// \throws Error when the shapes do not belong together.
[[nodiscard]] Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                                          const Scoring& scoring, const TokenRanges& rows,
                                          View<const double> bias = {}, bool of_inputs = false);

/// All rows: q's tokens are at 0 .. seq-1.
[[nodiscard]] inline Reference reference_forward(View<const double> q, View<const double> k,
                                                 View<const double> v, const Scoring& scoring,
                                                 View<const double> bias = {}) {
  return reference_forward(q, k, v, scoring, whole(q.shape().seq), bias);
}

/// Squares of norms of a gradient's rows, and of elements of dbias. They add up over the query heads and rows.
struct GradientSquares {
  Tensor<double> q, k, v, bias;

  GradientSquares() = default;
  GradientSquares(const Shape& queries, const Shape& keys, const Shape& of_bias)
      : q(queries.per_row()), k(keys.per_row()), v(keys.per_row()), bias(of_bias) {}
};

/// The gradients of sum(out * grad_out) in double, and the magnitudes that a tolerance needs.
struct ReferenceGradients : TermNumbers {  // what the given rows contribute to the sums
  Tensor<double> q;                        ///< [batch, heads, rows, dim]
  Tensor<double> k;                        ///< [batch, kv_heads, keys, dim]; what the given rows contribute
  Tensor<double> v;                        ///< like v; likewise
  Tensor<double> bias;                     ///< like the bias, summed over what broadcasts; empty: none
  double max_abs_score = 0;
  /// First-order bounds on the terms that rounding errors scale with, one a gradient.
  double magnitude_q = 0, magnitude_k = 0, magnitude_v = 0, magnitude_bias = 0;
  TermNumbers magnitudes = {};  ///< one a number
  /// How far roundings may move a row of dq, dk or dv, and an element of dbias, in epsilons: its sum without cancellation.
  Tensor<double> roundings_q = {}, roundings_k = {}, roundings_v = {}, roundings_bias = {};
  GradientSquares sizes = {};  ///< of the rows, if the terms of their sums had random signs
  /// Squares of how far relative errors of K and V, with random signs, may move the rows, in these errors. With e_j of the
  /// score and d_j of dp, ds_j = p_j (dp_j - delta) moves by ds_j e_j + p_j d_j - p_j * (the sum of these over the row).
  GradientSquares inputs = {};
  /// What multiplies the rounding of a term below the smallest normal number.
  double steps_q = 1, steps_k = 1, steps_v = 1;
};

/// Dense gradients for the queries at the global positions `rows`; arguments as in reference_forward, and
/// grad_out like out. dk, dv and dsinks of a whole problem are the sums over all its rows. The derivative of the softmax
/// is written with its definition, delta_i = sum_j P_ij dP_ij, not with the rowsum(dO * O) that the engines use.
/// \param of_inputs  fills `inputs`
[[nodiscard]] ReferenceGradients reference_backward(View<const double> q, View<const double> k,
                                                    View<const double> v, View<const double> grad_out,
                                                    const Scoring& scoring, const TokenRanges& rows,
                                                    View<const double> bias = {}, bool of_inputs = false);

[[nodiscard]] inline ReferenceGradients reference_backward(View<const double> q, View<const double> k,
                                                           View<const double> v, View<const double> grad_out,
                                                           const Scoring& scoring,
                                                           View<const double> bias = {}) {
  return reference_backward(q, k, v, grad_out, scoring, whole(q.shape().seq), bias);
}

}  // namespace ring_attention
