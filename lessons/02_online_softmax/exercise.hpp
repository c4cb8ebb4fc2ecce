/// \file
/// Lesson 02, the idea: a state (m, l) that grows by a score, or by another state.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "ring_attention/attention/softmax.hpp"  // negative_infinity
#include "ring_attention/core/error.hpp"         // require

namespace ring_attention::lesson {

/// What one pass remembers of the scores so far: m = max x, l = sum e^{x - m}. No score yet: (-inf, 0).
template <class T>
struct State {
  T m = negative_infinity<T>;
  T l = 0;
};

/// e^{from - to} moves a sum from the maximum `from` to the maximum `to`. A sum with the maximum -inf holds no term:
/// its factor is 0, because -inf - (-inf) is NaN.
template <class T>
T factor(T from, T to) {
  // Exercise: return the factor.
  still_empty("factor");
}

/// One pass: when the maximum grows, the sum so far is moved to the new one.
/// \param x  the scores: size() and operator[]
template <class T, class Row>
State<T> online_state(const Row& x, T (*move)(T from, T to) = factor<T>) {
  State<T> state;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T score = x[i];
    // Exercise: the state with this score. Move l with move(old maximum, new maximum), and add the term of
    // the score, which is factor(score, new maximum).
    still_empty("one more score");
  }
  return state;
}

/// Two sets of scores: the same step, with a state in the place of a score.
template <class T>
State<T> merged(const State<T>& a, const State<T>& b) {
  // Exercise: return the state {m, l} of both sets together.
  still_empty("merge");
}

/// The second pass: p = e^{x - m} / l. The state may cover more scores than those of x.
template <class T, class Row>
void normalise(const Row& x, const State<T>& state, std::span<T> p) {
  require(x.size() == p.size(), "softmax: x and p differ in length");
  for (std::size_t i = 0; i < x.size(); ++i) p[i] = state.l != 0 ? factor(x[i], state.m) / state.l : T{0};
}

/// Two passes (Milakov and Gimelshein, arXiv 1805.02867, algorithm 3), where lesson 01 has three.
template <class T, class Row>
void online_softmax(const Row& x, std::span<T> p) {
  normalise(x, online_state<T>(x), p);
}

}  // namespace ring_attention::lesson
