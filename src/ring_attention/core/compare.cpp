#include "ring_attention/core/compare.hpp"

#include <algorithm>

#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

bool both_negative_infinity(double got, double want) { return std::isinf(got) && got == want && got < 0; }

}  // namespace

template <class T, class U>
Comparison compare(View<const T> got, View<const U> want, Tolerance tolerance, CompareOptions options) {
  Comparison result;
  result.shape = got.shape();
  if (got.shape() != want.shape()) {
    result.reason = "shapes differ: got " + to_string(got.shape()) + ", want " + to_string(want.shape());
    return result;
  }
  double error_sum = 0, error_squared = 0, got_squared = 0, want_squared = 0;  // over the finite elements
  Index elements = 0;
  double worst_excess = -std::numeric_limits<double>::infinity();
  bool within = true;
  bool want_is_zero = true;  // and not its norm, which underflows
  for (Index i = 0; i < got.size() && result.reason.empty(); ++i) {
    const auto g = static_cast<double>(got.data()[i]);
    const auto w = static_cast<double>(want.data()[i]);
    if (options.allow_negative_infinity && both_negative_infinity(g, w)) continue;
    const double error = std::abs(g - w);
    const double bound = tolerance.absolute + (options.expect_zero ? 0.0 : tolerance.relative * std::abs(w));
    const bool finite = std::isfinite(g) && std::isfinite(w);
    if (!finite || error - bound > worst_excess) {
      worst_excess = error - bound;
      result.worst = i;
      result.got = g;
      result.want = w;
    }
    if (!finite) {
      result.reason = std::isfinite(w) ? "got is not finite" : "want is not finite";
      continue;
    }
    if (!(error <= bound)) within = false;
    if (w != 0) want_is_zero = false;
    result.max_error = std::max(result.max_error, error);
    error_sum += error;
    error_squared += error * error;
    got_squared += g * g;
    want_squared += w * w;
    ++elements;
  }
  result.mean_error = elements > 0 ? error_sum / static_cast<double>(elements) : 0;
  result.norm_got = std::sqrt(got_squared);
  result.norm_want = std::sqrt(want_squared);
  result.relative_error = result.norm_want > 0 ? std::sqrt(error_squared) / result.norm_want : 0;
  if (!result.reason.empty()) return result;
  if (options.expect_zero && !want_is_zero)
    result.reason = "zero was expected, but the reference is not zero";
  else if (!options.expect_zero && elements > 0 && want_is_zero)
    result.reason = "the reference is all zero: say expect_zero if that is meant";
  else if (!within)
    result.reason = "beyond the tolerance";
  result.ok = result.reason.empty();
  return result;
}

template Comparison compare(View<const float>, View<const float>, Tolerance, CompareOptions);
template Comparison compare(View<const float>, View<const double>, Tolerance, CompareOptions);
template Comparison compare(View<const double>, View<const double>, Tolerance, CompareOptions);

Comparison judged_by_norm(Comparison comparison, double bound) {
  const double error = comparison.relative_error * comparison.norm_want;
  if (comparison.ok && !(error <= bound)) {
    comparison.ok = false;
    comparison.reason = format("the norm of the error is %.3g, its bound %.3g", error, bound);
  }
  return comparison;
}

double gradient_norm_bound(const Comparison& comparison, double epsilon, double element,
                           View<const double> roundings, double unit, Index columns) {
  double squared = 0;
  for (const double x : roundings.elements()) squared += x * x;
  const double of_reference = 2 * std::numeric_limits<double>::epsilon();  // which is computed in double
  const double of_rows = roundings.size() > 0 ? 4 * (epsilon + unit + of_reference) * std::sqrt(squared)
                                              : std::numeric_limits<double>::infinity();
  const Shape counted = comparison.shape.with_dim(std::max(comparison.shape.dim, columns));
  const double of_elements = element * std::sqrt(static_cast<double>(counted.size())) / 128;
  return (100 * epsilon + 2.5 * unit) * comparison.norm_want + std::min(of_elements, of_rows);
}

std::string element_name(const Shape& shape, Index element) {
  if (shape.size() == 0 || element < 0) return "[]";
  const Index d = element % shape.dim;
  const Index s = element / shape.dim % shape.seq;
  const Index h = element / (shape.dim * shape.seq) % shape.heads;
  const Index b = element / (shape.dim * shape.seq * shape.heads);
  return to_string(Shape{b, h, s, d});
}

std::string describe(const Comparison& c) {
  const auto at = [&](const char* which) {
    return format("; %s at %s: got %.9g, want %.9g", which, element_name(c.shape, c.worst).c_str(), c.got,
                  c.want);
  };
  if (c.worst >= 0 && !(std::isfinite(c.got) && std::isfinite(c.want)))
    return "FAILED: " + c.reason + at("the first");
  std::string line = format("max %.3g, mean %.3g, relative %.3g (norms: got %.6g, want %.6g)", c.max_error,
                            c.mean_error, c.relative_error, c.norm_got, c.norm_want);
  if (!c.ok) line = "FAILED: " + c.reason + "; " + line;
  if (!c.ok && c.worst >= 0) line += at("worst");
  return line;
}

}  // namespace ring_attention
