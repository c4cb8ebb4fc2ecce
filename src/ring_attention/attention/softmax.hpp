/// \file
/// The state (m, l) of a softmax over some scores, and the merge of two such states.
///
/// Source: Milakov and Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867. Lessons 01 and 02 derive
/// it.
#pragma once

#include <cmath>
#include <limits>

namespace ring_attention {

/// -inf: the score of a masked key, and the maximum of no scores.
template <class T>
inline constexpr T negative_infinity = -std::numeric_limits<T>::infinity();

/// exp(from - to): the factor that moves a sum from maximum `from` to maximum `to` >= `from`.
///
/// A sum whose maximum is -inf holds no term, so its factor is 0. This is the one place that guards
/// (-inf) - (-inf) = NaN; everything that merges goes through it.
template <class T>
[[nodiscard]] inline T rescale(T from, T to) {
  return from == negative_infinity<T> ? T{0} : std::exp(from - to);
}

/// What one pass over scores needs to remember: m = max x, l = sum exp(x - m).
/// With `merge` this is a commutative monoid; the default value is its identity.
template <class T>
struct SoftmaxState {
  T m = negative_infinity<T>;
  T l = 0;

  /// log sum exp(x) = m + log l; -inf for the identity.
  [[nodiscard]] T lse() const { return m + std::log(l); }
};

/// The state of one score: (x, 1), or the identity when the score is -inf.
template <class T>
[[nodiscard]] SoftmaxState<T> softmax_state(T score) {
  return {score, rescale(score, score)};
}

/// The state of both sets of scores: m = max(m_a, m_b), l = l_a e^{m_a - m} + l_b e^{m_b - m}.
template <class T>
[[nodiscard]] SoftmaxState<T> merge(const SoftmaxState<T>& a, const SoftmaxState<T>& b) {
  const T m = a.m < b.m ? b.m : a.m;
  return {m, a.l * rescale(a.m, m) + b.l * rescale(b.m, m)};
}

}  // namespace ring_attention
