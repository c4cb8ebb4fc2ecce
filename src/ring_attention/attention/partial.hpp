/// \file
/// `Partial`: attention over the keys seen so far, and the merge of two such results.
///
/// One algebra at every scale: the same merge joins one score, one tile of keys, one hop of the ring.
/// Source: Dao et al., FlashAttention, arXiv 2205.14135, section 3.1; Liu et al., arXiv 2310.01889.
#pragma once

#include <span>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/attention/softmax.hpp"

namespace ring_attention {

/// Attention over some of the keys, not yet normalised, of queries `[batch, heads, seq, dim]` to values of value_dim columns:
///
///     m = max s,   l = sum e^{s - m},   o = sum e^{s - m} v
///
/// With `merge` this is a commutative monoid whose identity is (0, -inf, 0).
template <class T>
struct Partial {
  Tensor<T> o;  ///< [batch, heads, seq, value_dim], not normalised
  Tensor<T> m;  ///< [batch, heads, seq, 1]
  Tensor<T> l;  ///< [batch, heads, seq, 1]

  /// The identity: no key seen. \param out  the shape of o
  [[nodiscard]] static Partial empty(const Shape& out) {
    return {Tensor<T>(out), Tensor<T>(out.per_row(), negative_infinity<T>), Tensor<T>(out.per_row())};
  }
};

/// One row: (o, m, l) <- (o, m, l) merged with (o_b, m_b, l_b). Both are rescaled to the common maximum.
template <class T>
void merge_row(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& state_b,
               std::span<const T> o_b) {
  const SoftmaxState<T> merged = merge(state, state_b);
  const T keep = rescale(state.m, merged.m);
  const T add = rescale(state_b.m, merged.m);
  for (std::size_t d = 0; d < o.size(); ++d) o[d] = keep * o[d] + add * o_b[d];
  state = merged;
}

/// All rows: `into` <- `into` merged with `from`.
/// \throws Error when the shapes differ.
template <class T>
void merge(Partial<T>& into, const Partial<T>& from);

/// out = o / l, lse = m + log l. Consumes the state: out takes over the memory of o.
template <class T>
[[nodiscard]] AttentionResult<T> finish(Partial<T>&& partial);

}  // namespace ring_attention
