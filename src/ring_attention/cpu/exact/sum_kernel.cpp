/// \file
/// Terms that are rows in memory, added to exact sums.
#include "ring_attention/cpu/exact/simd_sum.hpp"

namespace ring_attention::cpu {
namespace {

void add_terms(const ExactTerms& terms) {
  for (Offset row = 0; row < terms.rows; ++row) add_row(terms, row);
}

}  // namespace

namespace RING_ATTENTION_ISA {
extern const AddExactTerms add_exact_terms;
const AddExactTerms add_exact_terms = add_terms;
}  // namespace RING_ATTENTION_ISA

}  // namespace ring_attention::cpu
