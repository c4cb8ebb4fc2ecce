/// \file
/// `BackwardEngine`: the interface between a ring, which brings K,V and takes dK,dV along, and the code that computes them.
#pragma once

#include <optional>
#include <utility>

#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/terms.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// Gradients of some keys, like k, and of their values, like v.
template <class T>
struct KeyValueGradient {
  View<T> k;
  View<T> v;
};

/// What the backward needs for a rank's queries, in addition to K,V. The caller owns all arrays.
template <class T>
struct BackwardInputs {
  View<const T> q;                 ///< [batch, heads, seq, dim]
  View<const SumOf<T>> out;        ///< like q, with the dim of v; over all keys, not only some
  View<const SumOf<T>> lse;        ///< [batch, heads, seq, 1]; over all keys, not only some
  View<const T> grad_out;          ///< dO, like out
  View<const SumOf<T>> bias = {};  ///< of these queries; empty: none
  std::optional<View<const SumOf<T>>> grad_lse = {};  ///< like lse; std::nullopt: 0

  /// \throws Error unless all arrays belong to queries at these positions
  void require_queries(const TokenRanges& at) const {
    const bool same = q.shape().with_dim(out.shape().dim) == out.shape() && out.shape() == grad_out.shape() &&
                      q.shape().per_row() == lse.shape();
    require(same, "q, out, dO and lse belong to the same queries");
    ring_attention::require_queries(q.shape(), at, bias.shape());
  }
  [[nodiscard]] EngineShapes shapes() const { return {q.shape(), out.shape(), bias.shape()}; }
};

/// Keys, values and their gradients for those queries. \throws Error unless they belong together. Returns g.
template <class T, class Sums>
Index require_keys(const EngineShapes& begun, const KeyValue<T>& kv, const KeyValueGradient<Sums>& gradient) {
  require(kv.k.shape() == gradient.k.shape() && kv.v.shape() == gradient.v.shape(),
          "k, v, dk and dv belong to the same keys");
  return require_keys(begun, kv);
}

/// dQ, dK and dV, and the gradients of the terms that there are.
template <class T>
struct Gradients : TermGradients<T> {
  Gradients() = default;
  Gradients(Tensor<T> of_q, Tensor<T> of_k, Tensor<T> of_v, TermGradients<T> of_terms = {})
      : TermGradients<T>(std::move(of_terms)), q(std::move(of_q)), k(std::move(of_k)), v(std::move(of_v)) {}

  [[nodiscard]] TermGradients<T>& terms() { return *this; }
  [[nodiscard]] const TermGradients<T>& terms() const { return *this; }

  Tensor<T> q, k, v;
};

/// The backward of some queries over keys and values of type T.
template <class T>
class BackwardEngine {
 public:
  virtual ~BackwardEngine() = default;
  /// Adds to dQ what these keys contribute, and to `gradient` what these queries contribute to dK and dV. Calls `progress`
  /// between tiles.
  virtual void accumulate(const KeyValue<T>& kv, const KeyValueGradient<SumOf<T>>& gradient,
                          const Progress& progress = {}) = 0;
  /// dQ. Ends the work on these queries.
  [[nodiscard]] virtual Tensor<SumOf<T>> finish() = 0;
  /// The gradients of the terms that the engine sums while it has dS: those of arrays, like the arrays.
  [[nodiscard]] virtual TermGradients<SumOf<T>> term_gradients() { return {}; }
};

}  // namespace ring_attention
