/// \file
/// What an engine is: the interface between a ring, which brings K,V, and the code that computes with them.
///
/// An engine owns the state of some queries. `begin` starts with no key seen, `accumulate` merges some keys, `finish`
/// gives the result. A ring calls `accumulate` only: it never merges.
#pragma once

#include <functional>
#include <vector>

#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// Some keys and their values, `[batch, kv_heads, tokens, dim]`, and their positions in the sequence.
template <class T>
struct KeyValue {
  View<const T> k;
  View<const T> v;
  TokenRanges ranges;
  bool last = false;  ///< no keys follow: an engine may compute its result with these
};

/// Gradients of some keys and values, `[batch, kv_heads, tokens, dim]`.
template <class T>
struct KeyValueGradient {
  View<T> k;
  View<T> v;
};

/// Called between tiles, so that a ring can keep messages moving while it computes.
using Progress = std::function<void()>;

/// What attention returns: out `[batch, heads, seq, dim]`, normalised, and lse `[batch, heads, seq, 1]`.
/// A row that sees no key has out = 0 and lse = -inf.
template <class T>
struct AttentionResult {
  Tensor<T> out;
  Tensor<T> lse;
};

/// What the backward needs of the forward, for a rank's queries. All views stay with the caller.
template <class T>
struct ForwardResult {
  View<const T> q;          ///< [batch, heads, seq, dim]
  View<const T> out;        ///< like q; over all keys, not over some
  View<const T> lse;        ///< [batch, heads, seq, 1]; over all keys, not over some
  View<const T> grad_out;   ///< dO, like q
  View<const T> bias = {};  ///< the dense bias of these queries (bias.hpp); empty: none
};

/// dQ, dK and dV of a single device; with a bias and sinks also their gradients.
template <class T>
struct Gradients {
  Tensor<T> q, k, v;
  Tensor<T> bias = {};             ///< like the bias; empty: none
  std::vector<double> sinks = {};  ///< one a query head, or none
};

/// Merges keys and values of type T into the state of the queries it has begun with, in any number of pieces.
template <class E, class T>
concept Engine =
    requires(E& engine, const KeyValue<T>& kv, const Progress& progress) { engine.accumulate(kv, progress); };

/// Adds to dQ what the keys contribute, and to a gradient of type G what the queries contribute to dK and dV.
template <class E, class T, class G>
concept BackwardEngine = requires(E& engine, const KeyValue<T>& kv, const KeyValueGradient<G>& gradient,
                                  const Progress& progress) { engine.accumulate(kv, gradient, progress); };

/// \throws Error unless k and v are [batch, kv_heads, keys, dim] with q's batch and dim, and kv_heads
/// divides q's heads. Returns g = heads / kv_heads.
Index require_attention_shapes(const Shape& q, const Shape& k, const Shape& v);

}  // namespace ring_attention
