/// \file
/// The reference, the oracle of all checks: dense attention in double with Eigen, in its simplest form.
#pragma once

#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// The result in double, and what a tolerance needs to know about the problem.
struct Reference {
  Tensor<double> out;        ///< [batch, heads, rows, value_dim]
  Tensor<double> lse;        ///< [batch, heads, rows, 1]
  double max_abs_score = 0;  ///< the largest |s| of an unmasked pair
  double max_abs_value = 0;  ///< max |v|
};

/// out = (F * softmax(scale q k^T + bias + mask)) v, one dense score matrix per head, with the sinks and the factors F
/// of the dropout of `scoring`.
///
/// \param q  [batch, heads, rows, dim]; its rows are at the global positions `rows`
/// \param k  [batch, kv_heads, keys, dim]; all keys, at the positions 0 .. keys-1
/// \param v  [batch, kv_heads, keys, value_dim]
/// \param bias  [batch or 1, heads or 1, rows, keys], or empty
///
/// Query head h uses KV head h / (heads / kv_heads). Memory: rows * keys * 8 bytes.
/// \throws Error when the shapes do not belong together.
[[nodiscard]] Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                                          const Scoring& scoring, const TokenRanges& rows,
                                          View<const double> bias = {});

/// All rows: q's tokens are at 0 .. seq-1.
[[nodiscard]] inline Reference reference_forward(View<const double> q, View<const double> k,
                                                 View<const double> v, const Scoring& scoring,
                                                 View<const double> bias = {}) {
  return reference_forward(q, k, v, scoring, whole(q.shape().seq), bias);
}

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
};

/// Dense gradients for the queries at the global positions `rows`; arguments as in reference_forward, and
/// grad_out like out. dk, dv and dsinks of a whole problem are the sums over all its rows. The derivative of the softmax
/// is written with its definition, delta_i = sum_j P_ij dP_ij, not with the rowsum(dO * O) that the engines use.
[[nodiscard]] ReferenceGradients reference_backward(View<const double> q, View<const double> k,
                                                    View<const double> v, View<const double> grad_out,
                                                    const Scoring& scoring, const TokenRanges& rows,
                                                    View<const double> bias = {});

[[nodiscard]] inline ReferenceGradients reference_backward(View<const double> q, View<const double> k,
                                                           View<const double> v, View<const double> grad_out,
                                                           const Scoring& scoring,
                                                           View<const double> bias = {}) {
  return reference_backward(q, k, v, grad_out, scoring, whole(q.shape().seq), bias);
}

}  // namespace ring_attention
