/// \file
/// `ExactSum`: a sum of rows of floats that does not depend on the order of its terms, nor on how they are grouped.
///
/// Floating-point addition rounds, so its result depends on the order. Here a term is cut into two digits, integers, at
/// absolute positions, and integers are added: they have no order. Sources: Demmel and Nguyen, Fast reproducible
/// floating-point summation (ARITH 2013), and Ahrens, Demmel, Nguyen, Algorithms for efficient reproducible
/// floating-point summation (TOMS 2020): bins of floats where this has integers.
///
/// A term is a row x of floats times 2^E. Its *level* is J = floor((E + e) / 22) with the smallest e >= -100 for which
/// max |x_c| < 2^e, so that |x_c| 2^E < 2^21 2^(22 J) for all c. The sum has a level, too, and for each c two digits, which count
/// multiples of 2^(22 J) and of 2^(22 (J - 1)):
///
///     high = rint(y),  low = rint((y - high) 2^22),  y = x 2^E / 2^(22 J)
///
/// add:   the sum is raised to the larger level of both; then the digits of the term at that level are added.
/// merge: both are raised to the larger level; then their digits are added.
/// raise: by one level (high, low) becomes (0, high), by more (0, 0).
///
/// **Lemma.** After any adds and merges, in any order, J is the largest level of the terms, and high and low are the sums of
/// the terms' digits at J and J - 1. So the state is a function of the multiset of the terms.
/// *Proof.* One level higher, the high digit of a term is 0, because |y| <= 1/2 and rint(1/2) = 0; its low digit is then the
/// rint of the same number that the high digit was. So the digit of a term at a level depends on the term and the level,
/// not on when it was added. A raise drops the digits below J - 1, of all terms alike; everything else adds integers. Scaling
/// by a power of two and y - high are exact; where y underflows, both digits are 0.
///
/// What is dropped must be whole digits of a fixed grid. A number of 64 bits relative to the running maximum fails: when it
/// is shifted, bits are dropped that have already carried.
///
/// - How many terms: a digit is at most 2^21, so 1023 of them fit into 32 bits. A row that is not `wide` throws at the
///   1024th. A wide one carries: what exceeds 24 bits of a digit moves into a word of its own, exactly, every 512 terms. The
///   carried words rise with their digit, so the lemma holds for their sum. It takes 2^33 terms.
/// - Accuracy: a term is rounded to a multiple of 2^(22 (J - 1)), at most 2^-22 of the largest |x_c| 2^E of all terms and
///   elements of the row (of 2^-100 2^E, where all are smaller). A column of V that is 1000 times larger than the others costs
///   those digits: their relative error grows to about 2e-4 (exact_sum_test). A level for each element would cure that with
///   three words in place of two (the time of the forward then grows by 12 % in place of 4 %).
/// - A term that is infinite or NaN makes the whole row NaN, in any order.
/// - E beyond +-2e9 counts as +-2e9. A score above 1.38e9, whose weight would be wrong, makes its row NaN (state.hpp).
/// - A row without terms is 0.
#pragma once

#include <span>

#include "ring_attention/attention/exact/format.hpp"
#include "ring_attention/core/memory.hpp"

namespace ring_attention {

/// How a row of `dim` sums lies in memory: level, number of terms since the last carry, high[dim], low[dim]; in a wide row
/// carried_high[dim] and carried_low[dim], too. Words that are all 0 are a row without terms.
struct ExactFormat {
  static constexpr Index most_terms = 1023;  ///< of a row that is not wide
  static constexpr Index terms_at_once =
      512;  ///< after which a wide row carries, and so takes a row of as many
  static constexpr double largest_exponent = 2e9;  ///< |E| of a term, in units of log 2

  Index dim = 1;
  bool wide = false;

  /// A format that takes so many terms.
  [[nodiscard]] static ExactFormat of(Index dim, Index terms) { return {dim, terms > most_terms}; }
  [[nodiscard]] Index words() const { return 2 + (wide ? 4 : 2) * dim; }
};

/// A row of sums. It is a view: the words, in an array of floats, belong to the caller.
class ExactSum {
 public:
  ExactSum(const ExactFormat& format, float* words)
      : format_(format), words_(reinterpret_cast<ExactWord*>(words)) {}

  /// Adds term[c] 2^exponent for all c.
  /// \param exponent  a whole number
  /// \throws Error for the 1024th term of a row that is not wide
  void add(std::span<const float> term, double exponent = 0);
  /// For a kernel that adds a term (cpu/kernels.hpp): carries where that is due. \throws Error as add() does
  void make_room();
  /// Adds the sums of another row of as many elements. A wide one takes one that is not, too, of at most 512 terms.
  /// \throws Error when there are too many terms, or only the other row is wide
  void merge(const ExactSum& other);
  /// Merges the words of a row of the same format.
  void merge(const float* other);

  [[nodiscard]] bool empty() const { return level() == 0; }
  /// The sum of element c is digits(c) 2^unit(): NaN when a term was not finite.
  [[nodiscard]] double digits(Index c) const;
  [[nodiscard]] double unit() const;
  /// The sums, rounded.
  void values(std::span<float> to) const;

 private:
  void raise(ExactWord level);
  void carry();
  [[nodiscard]] ExactWord& level() const { return words_[0]; }
  [[nodiscard]] ExactWord& terms() const { return words_[1]; }
  [[nodiscard]] Index parts() const { return format_.wide ? 4 : 2; }
  /// 0: high, 1: low, 2: carried_high, 3: carried_low.
  [[nodiscard]] ExactWord* part(Index i) const { return words_ + 2 + i * format_.dim; }

  ExactFormat format_;
  ExactWord* words_;
};

/// The memory of the host where arrays of floats are rows of exact sums: adding two arrays merges their rows.
class ExactMemory : public HostMemory {
 public:
  explicit ExactMemory(const ExactFormat& format) : format_(format) {}

  using HostMemory::add;
  void add(std::span<float> sum, std::span<const float> term) const override;

 private:
  ExactFormat format_;
};

/// The sums of an array of rows, `[batch, heads, seq, words]`, rounded: `[batch, heads, seq, dim]`.
[[nodiscard]] Tensor<float> exact_values(const ExactFormat& format, View<const float> rows);

}  // namespace ring_attention
