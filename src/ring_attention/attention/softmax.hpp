/// \file
/// The softmax of one row, three ways side by side: naive, safe, online.
///
/// All take a row of scores x[0..n) and write probabilities p[0..n), which sum to one.
/// A row whose scores are all -inf (every key masked) has p = 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace ring_attention {

/// -inf: the score of a masked key and the maximum of nothing.
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
/// With `merge` a commutative monoid; the default value is its identity.
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

/// exp(x) / sum exp(x). exp overflows from x = 88.8 in float and 709.8 in double, and inf / inf is NaN.
/// Kept because lesson 01 shows it fail.
template <class T>
void softmax_naive(std::span<const T> x, std::span<T> p);

/// Three passes over x: max, sum, normalise.
template <class T>
void softmax_safe(std::span<const T> x, std::span<T> p);

/// Two passes over x: (m, l) in one, normalise in the second (Milakov and Gimelshein, arXiv 1805.02867,
/// algorithm 3).
template <class T>
void softmax_online(std::span<const T> x, std::span<T> p);

/// The state after one pass over x.
template <class T>
[[nodiscard]] SoftmaxState<T> online_state(std::span<const T> x);

/// The second pass: p = exp(x - m) / l for a state that covers x (and, in a distributed softmax, more).
template <class T>
void normalise(std::span<const T> x, const SoftmaxState<T>& state, std::span<T> p);

}  // namespace ring_attention
