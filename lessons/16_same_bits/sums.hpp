// Lesson 16, beside the idea: the sum of the idea, the usual ones, and wrong variants, as objects with the same three
// functions: add x 2^m, merge, and the value of a number.
#pragma once

#include LESSON_IDEA

#include <bit>
#include <cstdint>

namespace ring_attention::lesson_16 {

using Numbers = std::span<const float>;

/// The idea.
struct Exact {
  explicit Exact(std::size_t numbers) : state(numbers) {}
  void add(Numbers x, float m) { lesson::add(state, x, static_cast<int>(m)); }
  void merge(const Exact& other) { lesson::merge(state, other.state); }
  [[nodiscard]] double value(std::size_t c) const { return lesson::value(state, c); }

  lesson::ExactState state;
};

/// The usual sum, of lessons 02 and 03: numbers of type T relative to the running maximum.
template <class T>
struct Running {
  explicit Running(std::size_t numbers) : x(numbers) {}
  void add(Numbers term, float maximum) {
    Running other(term.size());
    std::ranges::copy(term, other.x.begin());
    other.m = maximum;
    merge(other);
  }
  void merge(const Running& other) {
    const T to = std::max(m, other.m);
    if (std::isinf(to)) return;
    const T own = std::exp2(m - to), others = std::exp2(other.m - to);
    for (std::size_t c = 0; c < x.size(); ++c) x[c] = own * x[c] + others * other.x[c];
    m = to;
  }
  [[nodiscard]] double value(std::size_t c) const { return x[c] * std::exp2(double{m}); }

  std::vector<T> x;
  T m = -std::numeric_limits<T>::infinity();
};

/// Integers of 64 bits that count multiples of 2^(top - 30), where 2^top is above the largest term so far.
struct RelativeInteger {
  explicit RelativeInteger(std::size_t numbers) : count(numbers) {}
  void add(Numbers x, float m) {
    int e = -100;
    for (const float number : x)
      if (number != 0) e = std::max(e, std::ilogb(number) + 1);
    raise(static_cast<int>(m) + e);
    for (std::size_t c = 0; c < x.size(); ++c)
      count[c] += std::llrint(std::ldexp(double{x[c]}, static_cast<int>(m) - top + bits));
  }
  void merge(RelativeInteger other) {
    raise(other.top);
    other.raise(top);
    for (std::size_t c = 0; c < count.size(); ++c) count[c] += other.count[c];
  }
  void raise(int to) {
    if (to <= top) return;
    for (std::int64_t& number : count)
      number >>= std::min(std::int64_t{to} - top, std::int64_t{63});  // drops bits
    top = to;
  }
  [[nodiscard]] double value(std::size_t c) const {
    return top == INT_MIN ? 0 : std::ldexp(static_cast<double>(count[c]), top - bits);
  }

  static constexpr int bits = 30;
  int top = INT_MIN;
  std::vector<std::int64_t> count;
};

struct Carried : Exact {
  using Exact::Exact;
  void add(Numbers x, float m) {
    carry(state, lesson::level_of(x, static_cast<int>(m)));
    Exact::add(x, m);
  }
  void merge(Carried other) {
    carry(state, other.state.level);
    carry(other.state, state.level);
    Exact::merge(other);
  }
  static void carry(lesson::ExactState& sum, int level) {
    if (sum.level == lesson::no_level || level != sum.level + 1) return;
    for (std::size_t c = 0; c < sum.high.size(); ++c)
      sum.high[c] += static_cast<int>(std::rint(std::ldexp(sum.low[c], -lesson::digit_bits)));
  }
};

struct Truncated : Exact {
  using Exact::Exact;
  void add(Numbers x, float m) {
    const int exponent = static_cast<int>(m);
    lesson::raise(state, lesson::level_of(x, exponent));
    for (std::size_t c = 0; c < x.size(); ++c) {
      const double y = std::ldexp(double{x[c]}, exponent - lesson::digit_bits * state.level),
                   high = std::trunc(y);
      state.high[c] += static_cast<int>(high);
      state.low[c] += static_cast<int>(std::rint(std::ldexp(y - high, lesson::digit_bits)));
    }
  }
};

struct LevelOfSum : Exact {
  using Exact::Exact;
  void add(Numbers x, float m) {
    Exact::add(x, m);
    const auto above = [](int digit) { return std::abs(digit) > 1 << (lesson::digit_bits - 1); };
    if (std::ranges::any_of(state.high, above)) lesson::raise(state, state.level + 1);
  }
};

/// m is any number: the product that moves a term is rounded.
struct RealMaximum : Exact {
  using Exact::Exact;
  void add(Numbers x, float m) {
    lesson::raise(state, lesson::level_of(x, static_cast<int>(std::ceil(m))));
    const float factor = std::exp2(m - static_cast<float>(lesson::digit_bits * state.level));
    for (std::size_t c = 0; c < x.size(); ++c) {
      const float y = x[c] * factor, high = std::rint(y);
      state.high[c] += static_cast<int>(high);
      state.low[c] += static_cast<int>(std::rint(std::ldexp(y - high, lesson::digit_bits)));
    }
  }
};

/// Without a limit; an int that overflows begins again at its smallest number, as it does in the instructions of vectors.
struct AnyNumberOfTerms : Exact {
  using Exact::Exact;
  void add(Numbers x, float m) {
    Exact term(x.size());
    term.add(x, m);
    merge(term);
  }
  void merge(AnyNumberOfTerms other) { merge(static_cast<Exact&>(other)); }
  void merge(Exact& other) {
    lesson::raise(state, other.state.level);
    lesson::raise(other.state, state.level);
    for (std::size_t c = 0; c < state.high.size(); ++c) {
      state.high[c] = wrapped(state.high[c], other.state.high[c]);
      state.low[c] = wrapped(state.low[c], other.state.low[c]);
    }
  }
  static int wrapped(int a, int b) {
    return static_cast<int>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

/// As vectors round: adding 1.5 * 2^23 leaves rint(y) in the low bits of the float, also of a NaN.
struct DigitOfNan : Exact {
  using Exact::Exact;
  void add(Numbers x, float m) {
    std::vector<float> numbers(x.begin(), x.end());
    for (float& number : numbers) number = std::isfinite(number) ? number : 0;
    Exact::add(numbers, m);
    constexpr float magic = 0x1.8p23F;
    for (std::size_t c = 0; c < x.size(); ++c)
      if (std::isnan(x[c])) state.high[c] += std::bit_cast<int>(x[c] + magic) - std::bit_cast<int>(magic);
  }
};

}  // namespace ring_attention::lesson_16
