/// \file
/// `BackwardEngine`: the interface between a ring, which brings K,V and takes dK,dV along, and the code that computes them.
#pragma once

#include <vector>

#include "ring_attention/attention/engine.hpp"

namespace ring_attention {

/// Gradients of some keys and values, `[batch, kv_heads, tokens, dim]`.
template <class T>
struct KeyValueGradient {
  View<T> k;
  View<T> v;
};

/// What the backward needs for a rank's queries, in addition to K,V. The caller owns all arrays.
template <class T>
struct BackwardInputs {
  View<const T> q;                 ///< [batch, heads, seq, dim]
  View<const SumOf<T>> out;        ///< like q; over all keys, not only some
  View<const SumOf<T>> lse;        ///< [batch, heads, seq, 1]; over all keys, not only some
  View<const T> grad_out;          ///< dO, like q
  View<const SumOf<T>> bias = {};  ///< the dense bias of these queries (bias.hpp); empty: none
};

/// dQ, dK and dV of a single device, and the gradients of a bias and of sinks if there are any.
template <class T>
struct Gradients {
  Tensor<T> q, k, v;
  Tensor<T> bias = {};             ///< like the bias; empty: none
  std::vector<double> sinks = {};  ///< one per query head, or none
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
  /// dBias, like the bias: dS, summed over what broadcasts. Empty without a bias.
  [[nodiscard]] virtual Tensor<SumOf<T>> bias_gradient() = 0;
};

}  // namespace ring_attention
