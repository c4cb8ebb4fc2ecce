// Random states (o, m, l), and when two finished ones agree.
#pragma once

#include <gtest/gtest.h>

#include "ring_attention/attention/partial.hpp"
#include "ring_attention/core/compare.hpp"
#include "support/cases.hpp"

namespace ring_attention::test {

inline constexpr Shape shape{2, 2, 3, 4};

/// States of random keys; some rows have seen none.
template <class T>
Partial<T> random_partial(Dice& dice) {
  auto state = Partial<T>::empty(shape);
  const double spread = dice.of({1.0, 20.0, 300.0});
  for (std::size_t row = 0; row < 12; ++row) {
    if (dice.one_in(5)) continue;
    state.m.view().elements()[row] = static_cast<T>(dice.real(-spread, spread));
    state.l.view().elements()[row] = static_cast<T>(dice.real(1, 20));
    for (std::size_t d = 0; d < 4; ++d)
      state.o.view().elements()[4 * row + d] = static_cast<T>(dice.real(-9, 9));
  }
  return state;
}

template <class T>
Partial<T> clone(const Partial<T>& state) {
  return {state.o.clone(), state.m.clone(), state.l.clone()};
}

template <class T>
Partial<T> merged(const Partial<T>& a, const Partial<T>& b) {
  Partial<T> both = clone(a);
  merge(both, b);
  return both;
}

template <class T>
AttentionResult<T> finished(const Partial<T>& state) {
  return finish(clone(state));
}

/// Agreement of pieces whose lse are at most 1000 in size.
template <class T>
void expect_near(const AttentionResult<T>& got, const AttentionResult<T>& want) {
  const Tolerance tolerance = attention_tolerance<T>(8, 300, 10);
  const Comparison out = compare(got.out, want.out, tolerance);
  EXPECT_TRUE(out.ok) << "out " << describe(out);
  const Comparison lse = compare(got.lse, want.lse, tolerance, {.allow_negative_infinity = true});
  EXPECT_TRUE(lse.ok) << "lse " << describe(lse);
}

}  // namespace ring_attention::test
