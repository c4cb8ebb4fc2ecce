/// \file
/// Lesson 01, the idea: the softmax of a row, as books print it and safely.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "ring_attention/attention/softmax.hpp"  // negative_infinity
#include "ring_attention/core/error.hpp"         // require

namespace ring_attention::lesson {

/// p_i = e^{x_i} / sum_j e^{x_j}
/// \param x  the scores of the row: size() and operator[]
/// \param p  the probabilities, as many
/// \return the denominator
template <class Row, class T>
T naive_softmax(const Row& x, std::span<T> p) {
  require(x.size() == p.size(), "softmax: x and p differ in length");

  T sum = 0;  // pass 1: in float e^x is inf from x = 88.73 on
  for (std::size_t i = 0; i < x.size(); ++i) sum += std::exp(x[i]);

  for (std::size_t i = 0; i < x.size(); ++i) p[i] = std::exp(x[i]) / sum;  // pass 2: inf / inf is NaN
  return sum;
}

/// p_i = e^{x_i - m} / sum_j e^{x_j - m} is the same number for every m. With m = max x no exponent is above 0, no
/// term is above 1, and the term of the maximum is 1. So 1 <= l <= n for any scores.
///
/// A masked score is -inf: its p is 0. If all scores are masked, l is 0 and all p are 0.
/// \param start  the maximum of no scores
/// \return the denominator l
template <class Row, class T>
T safe_softmax(const Row& x, std::span<T> p, T start = negative_infinity<T>) {
  require(x.size() == p.size(), "softmax: x and p differ in length");
  const auto term = [](T score, T m) {  // -inf - (-inf) would be NaN
    return score == negative_infinity<T> ? T{0} : std::exp(score - m);
  };

  T m = start;  // pass 1
  // Exercise: m becomes the largest of the scores x[0], x[1], ...
  still_empty("maximum");

  T l = 0;  // pass 2
  // Exercise: l becomes the sum of e^{x_i - m}. term(x[i], m) is one of them, and 0 for a masked score.
  still_empty("sum");

  // Exercise: every p[i], which is e^{x_i - m} / l, and 0 when all scores are masked.
  still_empty("division");
  return l;
}

}  // namespace ring_attention::lesson
