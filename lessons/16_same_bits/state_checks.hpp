// Lesson 16, beside the idea: the lemma, on random terms, on many large ones and with a NaN.
#pragma once

#include <random>

#include "common/lesson.hpp"
#include "mistakes.hpp"
#include "ring_attention/attention/exact/sum.hpp"
#include "sums.hpp"

namespace ring_attention::lesson_16 {

struct Term {
  std::vector<float> x;
  int exponent;
};

/// Rows of four, of very different size. Some of their digits are exactly between two numbers.
inline std::vector<Term> random_terms(std::mt19937_64& random) {
  std::vector<Term> terms(2 + random() % 30);
  for (Term& term : terms) {
    term = {std::vector<float>(4), static_cast<int>(random() % 60) - 30};
    for (float& number : term.x) {
      const auto count = static_cast<float>(static_cast<int>(random() % (1U << 24U)) - (1 << 23));
      number = random() % 8 == 0
                   ? 0
                   : std::ldexp(count, -static_cast<int>(random() % 30) - (random() % 8 == 0 ? 40 : 0));
    }
  }
  return terms;
}

inline bool same(const lesson::ExactState& a, const lesson::ExactState& b) {
  return a.level == b.level && a.high == b.high && a.low == b.low;
}

/// All terms, merged two at a time at random: a random tree.
template <class Sum>
Sum merged_at_random(std::vector<Sum> sums, std::mt19937_64& random) {
  while (sums.size() > 1) {
    std::swap(sums[random() % sums.size()], sums.back());
    const Sum last = sums.back();
    sums.pop_back();
    sums[random() % sums.size()].merge(last);
  }
  return sums[0];
}

inline void check_lemma(Lesson& lesson) {
  std::mt19937_64 random(lesson.seed());
  bool same_state = true, of_digits = true, of_library = true;
  for (int trial = 0; trial < 1000; ++trial) {
    const std::vector<Term> terms = random_terms(random);
    Exact in_order(4);
    std::vector<Exact> leaves(1, Exact(4));
    const ExactFormat format{4, false};
    std::vector<float> words(static_cast<std::size_t>(format.words()));
    ExactSum library(format, words.data());
    for (const auto& [x, exponent] : terms) {
      in_order.add(x, static_cast<float>(exponent));
      if (random() % 3 > 0) leaves.emplace_back(4);  // else one more term of the last leaf
      leaves.back().add(x, static_cast<float>(exponent));
      library.add(x, exponent);
    }
    const lesson::ExactState state = merged_at_random(leaves, random).state;
    same_state = same_state && same(state, in_order.state);

    // What the lemma says: the largest level, and the digits of each term there.
    lesson::ExactState sum(4);
    for (const auto& [x, exponent] : terms) sum.level = std::max(sum.level, lesson::level_of(x, exponent));
    for (const auto& [x, exponent] : terms)
      for (std::size_t c = 0; c < 4; ++c) {
        const double y = std::ldexp(double{x[c]}, exponent - 22 * sum.level);
        sum.high[c] += static_cast<int>(std::rint(y));
        sum.low[c] += static_cast<int>(std::rint((y - std::rint(y)) * 0x1p22));
      }
    of_digits = of_digits && same(state, sum);
    for (std::size_t c = 0; c < 4; ++c)
      of_library = of_library && lesson::value(state, c) ==
                                     library.digits(static_cast<Index>(c)) * std::exp2(library.unit());
  }
  lesson.check("random terms, merged in 1000 random trees: the same state as one after the other",
               same_state);
  lesson.check("the state is the largest level, and the sums of the digits there", of_digits);
  lesson.check("the library's ExactSum has the same sums", of_library);
}

/// `count` terms of the largest magnitude, on so many ranks. NaN where the sum refuses them.
template <class Sum>
double sum_of_largest(int count, int ranks) {
  constexpr float largest = 0x1p22F - 1;  // two digits that are hardly larger: 2^21 and 2^21 - 1
  std::vector<Sum> sums(static_cast<std::size_t>(ranks), Sum(1));
  try {
    for (int i = 0; i < count; ++i)
      sums[static_cast<std::size_t>(i * ranks / count)].add(std::span(&largest, 1), -1);
    for (int rank = 1; rank < ranks; ++rank) sums[0].merge(sums[static_cast<std::size_t>(rank)]);
  } catch (const Error&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return sums[0].value(0);
}

template <class Sum>
void check_limit(Lesson& lesson) {
  constexpr double largest = (0x1p22 - 1) / 2;
  bool same_bits = true, right = true, wrong_sum = false;
  double seen = 0;
  for (const int count : {1022, 1023, 1024, 1025})
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const double sum = sum_of_largest<Sum>(count, ranks);
      if (std::isnan(sum)) {
        right = right && count > lesson::most_terms;
        continue;
      }
      if (sum != count * largest) {
        wrong_sum = true;
        seen = sum;
      }
      same_bits = same_bits && std::bit_cast<std::uint64_t>(sum) ==
                                   std::bit_cast<std::uint64_t>(sum_of_largest<Sum>(count, 1));
    }
  lesson.check("1022 to 1025 terms of the largest magnitude: the same bits on 1 to 8 ranks", same_bits);
  lesson.check("and 1022 and 1023 are their sum, 1024 and 1025 are refused", right && !wrong_sum,
               wrong_sum ? format("a sum of 1025 terms: %.10g, not %.10g", seen, 1025 * largest) : "");
}

template <class Sum>
void check_nan(Lesson& lesson) {
  const std::vector<float> usual{1, 2}, nan{3, std::numeric_limits<float>::quiet_NaN()};
  Sum before(2), after(2);
  before.add(nan, 0);
  before.add(usual, 0);
  after.add(usual, 60);
  after.merge(before);
  lesson.check("a NaN makes the sum NaN, in any order",
               std::isnan(before.value(1)) && std::isnan(after.value(1)),
               std::isnan(before.value(1)) ? "" : format("%.10g", before.value(1)));
}

}  // namespace ring_attention::lesson_16
