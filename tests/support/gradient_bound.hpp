// How far a gradient may be from the reference: element by element, and by the norm of the array.
#pragma once

#include <algorithm>
#include <cmath>

#include "support/gradients.hpp"

namespace ring_attention::test {

/// The verdict of judged_by_norm.
inline testing::AssertionResult is_near(const char* name, const Comparison& judged) {
  if (judged.ok) return testing::AssertionSuccess() << name << " " << describe(judged);
  return testing::AssertionFailure() << name << " " << describe(judged);
}

/// A gradient of a GPU kernel. On the emulator the norm of its error is at most 0.55 units of the norm of the gradient,
/// and 2e-5 in float.
/// \param unit       unit roundoff of the type to which the kernel rounds p and ds
/// \param tolerance  of a kernel that computes in float
inline testing::AssertionResult gradient_is_near(const char* name, const Tensor<float>& got,
                                                 const Tensor<double>& want, double unit, double magnitude,
                                                 Tolerance tolerance) {
  const bool zero = std::ranges::all_of(want.view().elements(), [](double x) { return x == 0; });
  const double of_float = tolerance.absolute;
  tolerance.absolute += unit * magnitude;  // each sum has one rounded factor, p or ds
  const Comparison comparison = compare(got, want, tolerance, {.expect_zero = zero});
  const double of_elements = of_float * std::sqrt(static_cast<double>(want.size())) / 32;
  return is_near(name, judged_by_norm(comparison, (1e-4 + 2.5 * unit) * comparison.norm_want + of_elements));
}

}  // namespace ring_attention::test
