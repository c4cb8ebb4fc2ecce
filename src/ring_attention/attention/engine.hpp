/// \file
/// `Engine`, `BackwardEngine`: the interface between a ring, which brings K,V, and the code that computes with them.
///
/// An engine owns the state of some queries. `begin` of its class starts with no key seen, `accumulate` merges some keys,
/// `finish` returns the result. A ring calls only `accumulate`: it never merges.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// The type of sums and results where q, k and v have type T: float for float, bf16 and fp16.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Some keys and their values, `[batch, kv_heads, tokens, dim]`, and their positions in the sequence.
template <class T>
struct KeyValue {
  View<const T> k;
  View<const T> v;
  TokenRanges ranges;
};

/// Gradients of some keys and values, `[batch, kv_heads, tokens, dim]`.
template <class T>
struct KeyValueGradient {
  View<T> k;
  View<T> v;
};

/// Called between tiles, so that a ring can keep messages moving while it computes.
using Progress = std::function<void()>;

/// The result of attention: out `[batch, heads, seq, dim]`, normalised, and lse `[batch, heads, seq, 1]`.
/// A row that sees no key has out = 0 and lse = -inf.
template <class T>
struct AttentionResult {
  Tensor<T> out;
  Tensor<T> lse;
};

/// Views of the caller's out and lse, to read or to write.
template <class T>
struct ResultViews {
  View<T> out, lse;
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

/// Views of the caller's arrays, to which the gradients are written.
template <class T>
struct GradientViews {
  View<T> q, k, v;
  View<T> bias = {};  ///< like the bias; empty: there is none
};

/// The forward of some queries over keys and values of type T.
template <class T>
class Engine {
 public:
  virtual ~Engine() = default;
  /// Merges these keys into the state, in any number of pieces and in any order. Calls `progress` between tiles.
  virtual void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) = 0;
  /// Ends the work on these queries.
  [[nodiscard]] virtual AttentionResult<SumOf<T>> finish() = 0;
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

/// \throws Error unless k and v are [batch, kv_heads, keys, dim] with q's batch and dim, and kv_heads
/// divides q's heads. Returns g = heads / kv_heads.
Index require_attention_shapes(const Shape& q, const Shape& k, const Shape& v);

}  // namespace ring_attention
