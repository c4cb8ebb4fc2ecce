/// \file
/// Exact sums (attention/exact/sum.hpp) in vectors: one row in every lane of a panel, or one row in memory after the other.
/// The digits are those of ExactSum, bit for bit. As in simd.hpp, everything has internal linkage.
#pragma once

#include "ring_attention/cpu/simd.hpp"

namespace ring_attention::cpu {
namespace {

inline ExactWord* describe(float* x) { return reinterpret_cast<ExactWord*>(x); }
inline Integers load_words(const ExactWord* p) { return *reinterpret_cast<const UnalignedInts*>(p); }
inline void store_words(ExactWord* p, Integers x) { *reinterpret_cast<UnalignedInts*>(p) = x; }

/// Adding 1.5 * 2^23 leaves rint(y) in the low bits of the sum, for |y| <= 2^22.
constexpr float magic = 12582912;
constexpr int magic_bits = 0x4b400000;

/// Adds the digits of x a b. These products are exact, fused or not.
inline void add_digits(Vector x, Vector a, Vector b, ExactWord* high, ExactWord* low) {
  const Vector xa = x * a, shifted = fma(xa, b, broadcast(magic));
  const Vector rest = fma(xa, b, -(shifted - magic));
  const Vector digits = fma(rest, broadcast(static_cast<float>(1 << exact_digit_bits)), broadcast(magic));
  store_words(high, load_words(high) + ((Integers)shifted - magic_bits));
  store_words(low, load_words(low) + ((Integers)digits - magic_bits));
}

/// 2^n for -126 <= n <= 127.
inline float power_of_two(int n) { return __builtin_bit_cast(float, (n + 127) << 23); }

/// How a term is moved to the level of its sum: its digits are those of (x * a) * b, where a * b may not be a float.
struct Move {
  float a, b;
  int raise;  ///< of the sum, by so many levels, before
};

/// Raises the level of a sum to that of a term that is added, and returns how to move both.
/// \param largest   the bits of the largest |x|
/// \param exponent  of the term: x 2^exponent
inline Move move_to(ExactWord& level, unsigned largest, int exponent) {
  constexpr ExactWord not_finite = 0x7fffffff;
  const int biased = static_cast<int>(largest >> 23U);
  const int top = exponent + (biased - 126 > -100 ? biased - 126 : -100);  // |x| < 2^top
  const int own = top >= 0 ? top / exact_digit_bits : -((exact_digit_bits - 1 - top) / exact_digit_bits);
  const ExactWord due = biased == 255 ? not_finite : exact_level_0 + own, before = level;
  if (due > before) level = due;
  const int raise = due > before && before != 0 ? (due - before == 1 ? 1 : 2) : 0;
  if (level == not_finite || level - due >= 2) return {0, 0, raise};
  const int power = exponent - (level - exact_level_0) * exact_digit_bits;
  return {power_of_two(power / 2), power_of_two(power - power / 2), raise};
}

/// The sums of the rows of a panel, in the workspace of a thread.
struct PanelSums {
  PanelSums(Real* words, Offset elements)
      : dim(elements),
        level(describe(words)),
        terms(level + lanes),
        high(terms + lanes),
        low(high + dim * lanes) {}
  static Offset elements(Offset dim) { return 2 + 2 * dim; }  // of one lane

  Offset dim;
  ExactWord *level, *terms;  // [lanes]
  ExactWord *high, *low;     // [dim][lanes]
};

inline void clear(const PanelSums& sums) {
  for (Offset i = 0; i < PanelSums::elements(sums.dim) * lanes; ++i) sums.level[i] = 0;
}

/// Adds x 2^exponent, [dim][lanes], in the lanes where `present`.
inline void add(const PanelSums& sums, const Real* x, const int* exponent, const bool* present) {
  unsigned largest[lanes];
  for (int v = 0; v < tile_vectors; ++v) {
    Integers most = {};
    for (Offset c = 0; c < sums.dim; ++c) {
      const Integers bits = (Integers)absolute(load(x + c * lanes + v * width));
      most = bits > most ? bits : most;
    }
    *reinterpret_cast<UnalignedInts*>(largest + v * width) = most;
  }
  Real a[lanes], b[lanes];
  for (int i = 0; i < lanes; ++i) {
    a[i] = b[i] = 0;
    if (!present[i]) continue;
    const Move move = move_to(sums.level[i], largest[i], exponent[i]);
    ++sums.terms[i];
    a[i] = move.a;
    b[i] = move.b;
    for (Offset c = i; move.raise > 0 && c < sums.dim * lanes; c += lanes) {
      sums.low[c] = move.raise == 1 ? sums.high[c] : 0;
      sums.high[c] = 0;
    }
  }
  for (int v = 0; v < tile_vectors; ++v) {
    const Vector to_a = load(a + v * width), to_b = load(b + v * width);
    for (Offset c = 0; c < sums.dim; ++c) {
      const Offset at = c * lanes + v * width;
      const Vector term = to_a == 0 ? broadcast(0) : load(x + at);  // 0 times what is not finite is NaN
      add_digits(term, to_a, to_b, sums.high + at, sums.low + at);
    }
  }
}

/// Writes the sums as rows in the format of ExactSum, not wide, `stride` words from one to the next.
inline void store_rows(const PanelSums& sums, Offset queries, Real* rows, Offset stride) {
  for (Offset i = 0; i < queries; ++i) {
    describe(rows)[i * stride] = sums.level[i];
    describe(rows)[i * stride + 1] = sums.terms[i];
  }
  const auto words = [](const ExactWord* x) { return reinterpret_cast<const Real*>(x); };
  transpose(words(sums.high), lanes, sums.dim, queries, rows + 2, stride);
  transpose(words(sums.low), lanes, sums.dim, queries, rows + 2 + sums.dim, stride);
}

inline unsigned largest_of(const float* x, Offset dim) {
  Integers most = {};
  Offset c = 0;
  for (; c + width <= dim; c += width) {
    const Integers bits = (Integers)absolute(load(x + c));
    most = bits > most ? bits : most;
  }
  unsigned result = 0;
  for (; c < dim; ++c) {
    const unsigned bits = __builtin_bit_cast(unsigned, x[c]) & 0x7fffffffU;
    result = bits > result ? bits : result;
  }
  RING_ATTENTION_UNROLL
  for (int i = 0; i < width; ++i)
    result = static_cast<unsigned>(most[i]) > result ? static_cast<unsigned>(most[i]) : result;
  return result;
}

/// Adds a row to its sums. The caller has called ExactSum::make_room().
inline void add_row(const ExactTerms& terms, Offset row) {
  const float* x = terms.terms + row * terms.dim;
  ExactWord* words = describe(terms.sums) + row * terms.words;
  const Move move = move_to(words[0], largest_of(x, terms.dim), 0);
  ++words[1];
  if (move.raise > 0)
    for (Offset high = 2; high < terms.words; high += 2 * terms.dim)
      for (Offset c = high; c < high + terms.dim; ++c) {
        words[c + terms.dim] = move.raise == 1 ? words[c] : 0;
        words[c] = 0;
      }
  if (move.a == 0) return;
  ExactWord *high = words + 2, *low = high + terms.dim;
  Offset c = 0;
  const Vector a = broadcast(move.a), b = broadcast(move.b);
  for (; c + width <= terms.dim; c += width) add_digits(load(x + c), a, b, high + c, low + c);
  if (c == terms.dim) return;
  Real rest[width] = {};
  ExactWord rest_high[width] = {}, rest_low[width] = {};
  for (Offset i = 0; c + i < terms.dim; ++i) rest[i] = x[c + i];
  add_digits(load(rest), a, b, rest_high, rest_low);
  for (Offset i = 0; c + i < terms.dim; ++i) {
    high[c + i] += rest_high[i];
    low[c + i] += rest_low[i];
  }
}

}  // namespace
}  // namespace ring_attention::cpu
