// How far a gradient may be from the reference: element by element, and by the norm of the array.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "support/gradients.hpp"

namespace ring_attention::test {

/// The bound of an element grows with the terms of its sum, which cancel: a gradient times 0.9 stays below it. The norm
/// of the error is a small part of the norm of the gradient, because roundings have both signs. Where nearly all of a
/// gradient cancels, its error is a small part of the bound of its elements.
/// \param relative  part of the norm of the gradient
/// \param element   bound of an element, from the type of the arithmetic
/// \param part      part of the norm of the bounds of all elements
inline testing::AssertionResult norm_is_near(const char* name, const Comparison& comparison, double relative,
                                             double element, double part) {
  const double error = comparison.relative_error * comparison.norm_want;
  const double bound = relative * comparison.norm_want +
                       part * element * std::sqrt(static_cast<double>(comparison.shape.size()));
  if (comparison.ok && error <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure() << name << " " << describe(comparison) << "\n  the norm of the error is "
                                     << error << ", the bound " << bound;
}

/// A gradient in T whose factors are rounded to `unit`. The errors of the engines in float and double are
/// at most 20 epsilon of the norm, or 0.0017 of the norm of the elements' bounds.
template <class T>
testing::AssertionResult norm_is_near(const char* name, const Comparison& comparison, double element,
                                      double unit = 0) {
  return norm_is_near(name, comparison, 100 * std::numeric_limits<T>::epsilon() + 2.5 * unit, element,
                      1. / 128);
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
  return norm_is_near(name, compare(got, want, tolerance, {.expect_zero = zero}), 1e-4 + 2.5 * unit, of_float,
                      1. / 32);
}

}  // namespace ring_attention::test
