#include "ring_attention/core/compare.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
/// The relative error of the reference, which is computed in double.
constexpr double of_reference = 2 * std::numeric_limits<double>::epsilon();

bool both_negative_infinity(double got, double want) { return std::isinf(got) && got == want && got < 0; }

/// A power of two near the largest number, at most 1: the squares of numbers that are divided by it do not vanish. Dividing
/// by it rounds nothing.
template <class T>
double unit_of(std::span<const T> numbers) {
  double most = 0;
  for (const T x : numbers)
    if (std::isfinite(x)) most = std::max(most, static_cast<double>(std::abs(x)));
  return most > 0 ? std::ldexp(1.0, std::ilogb(most)) : 1;
}

}  // namespace

template <class T, class U>
Comparison compare(View<const T> got, View<const U> want, Tolerance tolerance, CompareOptions options) {
  Comparison result;
  result.shape = got.shape();
  if (got.shape() != want.shape()) {
    result.reason = "shapes differ: got " + to_string(got.shape()) + ", want " + to_string(want.shape());
    return result;
  }
  // Over the finite elements; squares in a unit.
  double error_sum = 0, error_squared = 0, got_squared = 0, want_squared = 0;
  const double unit = std::max(unit_of(got.elements()), unit_of(want.elements()));
  Index elements = 0;
  double worst_excess = -infinity;
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
    error_squared += error / unit * (error / unit);
    got_squared += g / unit * (g / unit);
    want_squared += w / unit * (w / unit);
    ++elements;
  }
  result.mean_error = elements > 0 ? error_sum / static_cast<double>(elements) : 0;
  result.norm_got = unit * std::sqrt(got_squared);
  result.norm_want = unit * std::sqrt(want_squared);
  result.norm_error = unit * std::sqrt(error_squared);
  result.relative_error = want_squared > 0 ? std::sqrt(error_squared) / std::sqrt(want_squared) : 0;
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

double norm(std::span<const double> numbers) {
  const double unit = unit_of(numbers);
  double squared = 0;
  for (const double x : numbers) squared += x / unit * (x / unit);
  return unit * std::sqrt(squared);
}

namespace {

/// The error is a large part of what cancellation leaves. Where it leaves nothing, as in a gradient of a saturated
/// softmax, the array is 0 but for roundings, as it should be.
bool mostly_roundings(const Comparison& comparison, double bound) {
  return comparison.norm_error > widest_bound * comparison.norm_want && comparison.norm_want > bound / 128;
}

}  // namespace

Comparison judged_by_norm(Comparison comparison, double bound, double size, double smallest, bool cancels) {
  if (!comparison.ok || comparison.max_error <= smallest) return comparison;
  if (!(comparison.norm_error <= bound))
    comparison.reason = format("the norm of the error is %.3g, its bound %.3g", comparison.norm_error, bound);
  else if (!(bound <= widest_bound * std::max(comparison.norm_want, size)) ||
           (cancels && mostly_roundings(comparison, bound)))
    comparison.decides = false;
  if (!comparison.decides)
    comparison.reason =
        format("roundings may reach %.3g, of a norm of %.3g: this says nothing", bound, comparison.norm_want);
  comparison.ok = comparison.reason.empty();
  return comparison;
}

Comparison judged_by_rows(Comparison comparison, View<const double> got, View<const double> want,
                          const RowErrors& errors, const Precision& precision, Index keys) {
  const auto dim = static_cast<std::size_t>(want.shape().dim),
             rows = static_cast<std::size_t>(errors.size.size());
  const auto root = [](auto number) { return std::sqrt(static_cast<double>(number)); };
  const double of_denormals = precision.smallest * (1 + root(keys) / 4) * root(dim);
  std::vector<double> difference(dim);
  double of_all = 0;
  for (std::size_t row = 0; row < rows && comparison.ok; ++row) {
    const auto of_row = [&](View<const double> array) { return array.elements().subspan(row * dim, dim); };
    const auto g = of_row(got), w = of_row(want);
    if (dim == 0 || both_negative_infinity(g[0], w[0])) continue;
    std::ranges::transform(g, w, difference.begin(), std::minus<>());
    const double error = norm(difference),
                 bound = (100 * precision.epsilon + 2.5 * precision.unit) * norm(w) +
                         4 * (precision.epsilon + of_reference) * errors.roundings.data()[row] +
                         2 * precision.unit * errors.inputs.data()[row] + of_denormals;
    of_all = std::hypot(of_all, bound);
    if (error <= 2 * bound) continue;
    comparison.ok = false;
    comparison.reason =
        format("the norm of the error of row %zu is %.3g, its bound %.3g", row, error, 2 * bound);
  }
  return judged_by_norm(comparison, of_all, norm(errors.size.view().elements()), precision.smallest);
}

double GradientErrors::size() const {
  const auto all = sizes.elements();
  return all.empty() ? infinity : std::sqrt(std::accumulate(all.begin(), all.end(), 0.0));
}

double gradient_norm_bound(const Comparison& comparison, const Precision& precision, double element,
                           const GradientErrors& errors, Index terms, Index columns) {
  const auto& [epsilon, smallest, unit] = precision;
  const Shape counted = comparison.shape.with_dim(std::max(comparison.shape.dim, columns));
  const double root = std::sqrt(static_cast<double>(counted.size()));
  double of_rows = errors.roundings.size() > 0
                       ? 4 * (epsilon + of_reference) * norm(errors.roundings.elements())
                       : errors.element * root / 128;
  if (unit > 0) of_rows += unit * GradientErrors{.sizes = errors.inputs}.size();
  const double of_elements = comparison.norm_want > 0 ? element * root / 128 : infinity;
  const double of_denormals = errors.steps * (2 + std::sqrt(static_cast<double>(terms)) / 2) * smallest;
  return (100 * epsilon + 2.5 * unit) * comparison.norm_want + std::min(of_elements, of_rows) +
         of_denormals * root;
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
