// How far a gradient of a GPU kernel may be from the reference: element by element, and by the norm of the array.
#pragma once

#include <cmath>
#include <string>

#include "support/gradients.hpp"

namespace ring_attention::test {

/// The bound of an element grows with the terms of its sum, which cancel: a gradient times 0.9 stays below it. The norm
/// of the error does not, because p and ds are rounded with both signs. On the emulator it is at most 0.55 units of the
/// norm of the gradient, and 2e-5 in float.
/// \param unit       unit roundoff of the type to which the kernel rounds p and ds
/// \param tolerance  of a kernel that computes in float
inline testing::AssertionResult gradient_is_near(const char* name, const Tensor<float>& got,
                                                 const Tensor<double>& want, double unit, double magnitude,
                                                 Tolerance tolerance) {
  const bool zero = std::ranges::all_of(want.view().elements(), [](double x) { return x == 0; });
  const double of_float = tolerance.absolute * std::sqrt(static_cast<double>(want.size()));
  tolerance.absolute += unit * magnitude;  // each sum has one rounded factor, p or ds
  const Comparison comparison = compare(got, want, tolerance, {.expect_zero = zero});
  const double error = comparison.relative_error * comparison.norm_want;
  const double bound = (1e-4 + 2.5 * unit) * comparison.norm_want + of_float / 32;
  if (comparison.ok && error <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << " " << describe(comparison) << "\n  the norm of the error is "
                                     << error << ", the bound " << bound;
}

}  // namespace ring_attention::test
