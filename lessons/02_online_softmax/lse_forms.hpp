/// \file
/// Lesson 02, the second idea: merging two results that are already divided by their l.
#pragma once

#include <algorithm>
#include <cmath>

#include "ring_attention/attention/softmax.hpp"  // negative_infinity

namespace ring_attention::lesson {

/// One number of a normalised result: out = sum e^{x - lse} v, lse = m + log l. No score yet: (0, -inf).
template <class T>
struct Result {
  T out = 0;
  T lse = negative_infinity<T>;
};

// e^{lse} is the weight of a result: out = (e^{lse_a} out_a + e^{lse_b} out_b) / (e^{lse_a} + e^{lse_b}).
// Two ways to write it in which exp never sees a positive number.

/// lse = max(lse_a, lse_b) + log1p(e^{-|lse_a - lse_b|}),  out = e^{lse_a - lse} out_a + e^{lse_b - lse} out_b
template <class T>
Result<T> log1p_form(const Result<T>& a, const Result<T>& b) {
  const T top = std::max(a.lse, b.lse);
  if (top == negative_infinity<T>) return a;  // neither has seen a score; -inf - (-inf) would be NaN
  const T lse = top + std::log1p(std::exp(-std::abs(a.lse - b.lse)));
  return {std::exp(a.lse - lse) * a.out + std::exp(b.lse - lse) * b.out, lse};
}

/// As ring-flash-attention writes it, with d = lse_b - lse_a:
/// out = out_a - sigmoid(d) (out_a - out_b),  lse = lse_a - log sigmoid(-d)
template <class T>
Result<T> sigmoid_form(const Result<T>& a, const Result<T>& b) {
  if (b.lse == negative_infinity<T>) return a;
  if (a.lse == negative_infinity<T>) return b;  // the state in which every accumulation starts
  const T d = b.lse - a.lse;
  const T e = std::exp(-std::abs(d));
  const T sigmoid = (d < 0 ? e : T{1}) / (1 + e);            // 1 / (1 + e^-d)
  const T log_sigmoid = std::min(-d, T{0}) - std::log1p(e);  // log(1 / (1 + e^d))
  return {a.out - sigmoid * (a.out - b.out), a.lse - log_sigmoid};
}

}  // namespace ring_attention::lesson
