/// \file
/// `Engine`: the interface between a ring, which brings K,V, and the code that computes with them.
///
/// An engine owns the state of some queries. `begin` of its class starts with no key seen, `accumulate` merges some keys,
/// `finish` returns the result. A ring calls only `accumulate`: it never merges.
#pragma once

#include <functional>
#include <type_traits>

#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// The type of sums and results where q, k and v have type T: float for float, bf16 and fp16.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Some keys, `[batch, kv_heads, tokens, dim]`, their values, `[batch, kv_heads, tokens, value_dim]`, and their positions in
/// the sequence.
template <class T>
struct KeyValue {
  View<const T> k;
  View<const T> v;
  TokenRanges ranges;
};

/// Called between tiles, so that a ring can keep messages moving while it computes.
using Progress = std::function<void()>;

/// The result of attention: out `[batch, heads, seq, value_dim]`, normalised, and lse `[batch, heads, seq, 1]`.
/// A row that sees no key has out = 0 and lse = -inf.
template <class T>
struct AttentionResult {
  Tensor<T> out;
  Tensor<T> lse;
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

}  // namespace ring_attention
