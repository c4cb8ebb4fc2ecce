/// \file
/// Lesson 16, the idea: a sum of rows of floats whose bits do not depend on the order of its terms.
#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "ring_attention/core/error.hpp"  // require
#include "ring_attention/core/shape.hpp"  // Index

namespace ring_attention::lesson {

/// Where the tile of a position begins: a multiple of `size` in the whole sequence, on any number of ranks.
inline Index tile_begin(Index position, Index size) { return position / size * size; }

/// The maximum of a tile's scores, in units of log 2, rounded up to a whole number. \param y  at least one
inline float whole_maximum(std::span<const float> y) { return std::ceil(*std::ranges::max_element(y)); }

constexpr int digit_bits = 22;    // digit j of a number counts multiples of 2^(22 j)
constexpr int most_terms = 1023;  // a digit of a term is at most 2^21: so many fit into an int
constexpr int no_level = INT_MIN, not_finite = INT_MAX;

/// A row of sums: number c is high[c] 2^(22 level) + low[c] 2^(22 (level - 1)).
struct ExactState {
  explicit ExactState(std::size_t numbers) : high(numbers), low(numbers) {}

  int level = no_level;  // the largest level of the terms
  int terms = 0;
  std::vector<int> high, low;  // sums of the terms' digits at `level`, and at `level` - 1
};

/// The level of the term x 2^exponent: the smallest J with |x_c| 2^exponent < 2^21 2^(22 J) for all c (of a term whose
/// numbers are all below 2^-100 it is larger). It depends on the term and on nothing else.
inline int level_of(std::span<const float> x, int exponent) {
  int e = -100;  // |x_c| < 2^e
  // Exercise: `not_finite` when a number is NaN or infinite. Else let e grow until 2^e is above each |x_c| (std::ilogb(y)
  // is the k of 2^k <= |y| < 2^(k + 1), for y other than 0), and return (exponent + e) / 22, rounded down. (C++ rounds a
  // quotient of ints toward 0. Down is right, because the smallest J with n - 21 <= 22 J is n / 22 rounded down.)
  still_empty("level of a term");
}

/// Brings a sum to a larger level. Whole digits of a fixed grid are dropped, and nothing is rounded.
inline void raise(ExactState& sum, int level) {
  if (level <= sum.level) return;
  // Exercise: what are the digits at `level` and at `level` - 1, when the sum had a digit at sum.level and one below?
  still_empty("raise");
}

/// One more term, x 2^exponent.
inline void add(ExactState& sum, std::span<const float> x, int exponent) {
  require(++sum.terms <= most_terms, "a sum of more than 1023 terms would overflow");
  raise(sum, level_of(x, exponent));
  if (sum.level == not_finite) return;  // a NaN stays, in any order
  for (std::size_t c = 0; c < x.size(); ++c) {
    const double y = std::ldexp(double{x[c]}, exponent - digit_bits * sum.level);
    // Exercise: y is the number in units of the high digit. Add its two digits to those of the sum.
    still_empty("two digits");
  }
}

/// The terms of both.
inline void merge(ExactState& sum, ExactState other) {
  sum.terms += other.terms;
  require(sum.terms <= most_terms, "a sum of more than 1023 terms would overflow");
  // Exercise: the digits of both, at the same level. Either may have the lower one.
  still_empty("merge");
}

/// Number c, rounded once.
inline double value(const ExactState& sum, std::size_t c) {
  if (sum.level == no_level) return 0;
  if (sum.level == not_finite) return std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(std::ldexp(double(sum.high[c]), digit_bits) + sum.low[c], digit_bits * (sum.level - 1));
}

}  // namespace ring_attention::lesson
