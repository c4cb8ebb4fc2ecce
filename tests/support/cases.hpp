// Random cases that can be run again one by one.
//
// RING_ATTENTION_SEED=n   another set of cases (default 1)
// RING_ATTENTION_CASE=i   only the i-th of them
// RING_ATTENTION_CASES=n  another number of cases
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>

#include "ring_attention/core/shape.hpp"

namespace ring_attention::test {

/// A number from the environment, or `otherwise`.
inline Index from_environment(const char* name, Index otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::atoll(text) : otherwise;
}

/// Small random decisions: the same for the same (seed, index), on every machine and rank.
class Dice {
 public:
  Dice(Index seed, Index index) {
    std::seed_seq sequence{seed, index};
    generator_.seed(sequence);
  }

  /// lowest <= x <= highest
  Index between(Index lowest, Index highest) {
    return lowest + static_cast<Index>(generator_() % static_cast<std::uint64_t>(highest - lowest + 1));
  }
  bool one_in(Index n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<Index>(values.size()) - 1)];
  }
  /// low <= x < high
  double real(double low, double high) {
    return low + (high - low) * (static_cast<double>(generator_() >> 11U) * 0x1p-53);
  }
  std::uint64_t bits() { return generator_(); }

 private:
  std::mt19937_64 generator_;
};

/// Calls visit(dice, index) for index = 0 .. cases-1. A failure prints how to repeat its case alone.
/// Never stops early: under MPI the other ranks go on.
template <class Visit>
void for_each_case(Index cases, Visit visit) {
  const Index seed = from_environment("RING_ATTENTION_SEED", 1);
  const Index only = from_environment("RING_ATTENTION_CASE", -1);
  const Index number = from_environment("RING_ATTENTION_CASES", cases);
  for (Index index = 0; index < number; ++index) {
    if (only >= 0 && index != only) continue;
    SCOPED_TRACE("again: RING_ATTENTION_SEED=" + std::to_string(seed) +
                 " RING_ATTENTION_CASE=" + std::to_string(index));
    Dice dice(seed, index);
    visit(dice, index);
  }
}

}  // namespace ring_attention::test
