/// \file
/// Terms that are rows of an array, added to exact sums.
#pragma once

#include "ring_attention/attention/exact/sum.hpp"
#include "ring_attention/cpu/kernels.hpp"

namespace ring_attention {

/// Adds a term to each of some rows of sums.
/// \param add    of the kernels (cpu/kernels.hpp)
/// \param sums   [rows][words] of the format  \param terms  [rows][dim]
/// \throws Error as ExactSum::add() does
inline void add_exact_terms(cpu::AddExactTerms add, const ExactFormat& format, float* sums, Index rows,
                            const float* terms) {
  const auto words = static_cast<cpu::Offset>(format.words()), dim = static_cast<cpu::Offset>(format.dim);
  for (Index i = 0; i < rows; ++i) ExactSum(format, sums + i * words).make_room();
  add({terms, sums, static_cast<cpu::Offset>(rows), dim, words});
}

}  // namespace ring_attention
