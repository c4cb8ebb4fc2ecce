/// \file
/// The oracle: dense attention in double with Eigen, written to be obviously right.
#pragma once

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/attention/partial.hpp"

namespace ring_attention {

/// The result in double, and what a tolerance needs to know about the problem.
struct Reference {
  Tensor<double> out;        ///< [batch, heads, rows, dim]
  Tensor<double> lse;        ///< [batch, heads, rows, 1]
  double max_abs_score = 0;  ///< the largest |s| of an unmasked pair
  double max_abs_value = 0;  ///< max |v|
};

/// out = softmax(scale q k^T + mask) v, one dense score matrix per head.
///
/// \param q  [batch, heads, rows, dim]; its rows stand at the global positions `rows`
/// \param k  [batch, kv_heads, keys, dim]; all keys, at the positions 0 .. keys-1
/// \param v  like k
///
/// Query head h uses KV head h / (heads / kv_heads). Memory: rows * keys * 8 bytes.
/// \throws Error when the shapes do not belong together.
[[nodiscard]] Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                                          const Scoring& scoring, const Runs& rows);

/// All rows: q's tokens stand at 0 .. seq-1.
[[nodiscard]] inline Reference reference_forward(View<const double> q, View<const double> k,
                                                 View<const double> v, const Scoring& scoring) {
  return reference_forward(q, k, v, scoring, whole(q.shape().seq));
}

/// \throws Error unless k and v are [batch, kv_heads, keys, dim] with q's batch and dim, and kv_heads
/// divides q's heads. Returns g = heads / kv_heads.
Index require_attention_shapes(const Shape& q, const Shape& k, const Shape& v);

}  // namespace ring_attention
