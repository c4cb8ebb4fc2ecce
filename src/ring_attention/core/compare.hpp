/// \file
/// `compare`: does an array agree with its reference? A check that can fail.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/view.hpp"

namespace ring_attention {

/// The error that an element may have: |got - want| <= absolute + relative * |want|.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

/// What `compare` accepts beyond ordinary finite values. The default accepts nothing.
struct CompareOptions {
  /// got = want = -inf is agreement: only for lse, whose fully masked rows are -inf.
  bool allow_negative_infinity = false;
  /// The reference is zero everywhere by intention (the gradients of fully masked rows), and the check is
  /// absolute. Without this flag an all-zero reference is refused, because any array of small numbers would
  /// agree with it.
  bool expect_zero = false;
};

/// The verdict and what explains it. Norms and errors cover the finite elements.
struct Comparison {
  bool ok = false;
  std::string reason;         ///< empty when ok; else one line
  Shape shape;                ///< of `got`
  double max_error = 0;       ///< max |got - want|
  double mean_error = 0;      ///< mean |got - want|
  double relative_error = 0;  ///< ||got - want|| / ||want||; 0 when want is zero
  double norm_got = 0;        ///< Euclidean
  double norm_want = 0;       ///< Euclidean
  double norm_error = 0;      ///< ||got - want||
  bool decides =
      true;          ///< false: `want` may be known too badly to say anything (judged_by_norm); then not ok
  Index worst = -1;  ///< element in memory order: the first that is not finite, else the worst
  double got = 0;    ///< at `worst`
  double want = 0;   ///< at `worst`
};

/// Compares in double. Finite first: a NaN or an unexpected infinity fails whatever the tolerance.
/// Then every element must lie within the tolerance, tested as !(error <= bound), which NaN fails.
/// Shapes that differ fail; an empty array agrees with an empty array.
template <class T, class U>
[[nodiscard]] Comparison compare(View<const T> got, View<const U> want, Tolerance tolerance,
                                 CompareOptions options = {});

/// Anything that has a view(): tensors.
template <class A, class B>
[[nodiscard]] Comparison compare(const A& got, const B& want, Tolerance tolerance,
                                 CompareOptions options = {})
  requires requires {
    got.view();
    want.view();
  }
{
  return compare(got.view(), want.view(), tolerance, options);
}

/// `[b, h, s, d]` of an element in memory order.
[[nodiscard]] std::string element_name(const Shape& shape, Index element);

/// One line: errors, norms and, when it failed, why and where (as element_name says it).
[[nodiscard]] std::string describe(const Comparison& comparison);

/// The first NaN or infinity of an array, and how many there are.
struct NonFinite {
  Index count = 0;
  std::optional<Index> first;  ///< in memory order
};
template <class T>
[[nodiscard]] NonFinite count_non_finite(View<const T> array) {
  NonFinite found;
  for (Index i = 0; i < array.size(); ++i) {
    if (std::isfinite(array.data()[i])) continue;
    if (!found.first) found.first = i;
    ++found.count;
  }
  return found;
}

/// Compares the bytes. For results whose arithmetic has the same order.
template <class T>
[[nodiscard]] bool bitwise_equal(View<const T> a, View<const T> b) {
  const auto bytes = static_cast<std::size_t>(a.size()) * sizeof(T);
  return a.shape() == b.shape() && (bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0);
}

template <class T>
[[nodiscard]] bool bitwise_equal(const T& a, const T& b)
  requires requires { a.view(); }
{
  return bitwise_equal(a.view(), b.view());
}

/// Euclidean. Numbers whose squares vanish count.
[[nodiscard]] double norm(std::span<const double> numbers);

/// What the numbers of a computation are rounded to.
struct Precision {
  double epsilon = 0;   ///< of the type of the arithmetic
  double smallest = 0;  ///< its smallest number above 0: the step of denormal numbers
  double unit =
      0;  ///< relative rounding error of K and V before the arithmetic: 0, or that of their type in messages

  template <class T>
  [[nodiscard]] static Precision of(double unit = 0) {
    return {std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::denorm_min(), unit};
  }
};

/// A bound above this share of an array allows too much: arrays that are wrong by as much would agree.
inline constexpr double widest_bound = 0.1;

/// A verdict of `compare` that also fails where the norm of the error is beyond `bound`, and decides nothing where `bound`
/// is above widest_bound of the norm of `want` and of `size`.
/// \param size      of an array that cancels
/// \param smallest  an error that any array may have
/// \param cancels   an error above widest_bound of the norm decides nothing, unless the array is 0 but for roundings
[[nodiscard]] Comparison judged_by_norm(Comparison comparison, double bound,
                                        double size = std::numeric_limits<double>::infinity(),
                                        double smallest = -1, bool cancels = false);

/// What rounding can do to the rows of out or lse (Reference), [batch, heads, rows, 1].
struct RowErrors {
  Tensor<double> roundings;  ///< of the arithmetic, in its epsilons: all errors have the sign that is worst
  Tensor<double> inputs;     ///< of K and V, in units of their relative errors, which have random signs
  Tensor<double> size;       ///< the norm of the row if its terms had random signs; of lse, a logarithm: 1

  RowErrors() = default;
  explicit RowErrors(const Shape& rows) : roundings(rows), inputs(rows), size(rows) {}
};

/// Judges out or lse by the norm of each row's error and of all. Engines in float and double have errors of at most 20
/// epsilon of the norm and 0.94 epsilon of `roundings`; K and V in bf16 add at most 1.2 of `inputs`.
/// \param keys  that a row sums over
[[nodiscard]] Comparison judged_by_rows(Comparison comparison, View<const double> got,
                                        View<const double> want, const RowErrors& errors,
                                        const Precision& precision, Index keys);

/// What rounding can do to a gradient (ReferenceGradients); what is empty is not known.
struct GradientErrors {
  View<const double> roundings = {};  ///< of its rows, in epsilons
  View<const double> sizes = {};      ///< squares of the norms of its rows if their terms had random signs
  View<const double> inputs = {};     ///< squares of the norms by relative errors of K and V, in these
  double steps = 0;                   ///< what multiplies the smallest number, by which a term may be wrong
  /// Bound of an element by the arithmetic alone, in place of `roundings` that are not known.
  double element = std::numeric_limits<double>::infinity();

  /// The norm of the whole gradient if its terms had random signs; infinite: not known.
  [[nodiscard]] double size() const;
};

/// The bound of a gradient's norm, as below.
[[nodiscard]] double gradient_norm_bound(const Comparison& comparison, const Precision& precision,
                                         double element, const GradientErrors& errors, Index terms,
                                         Index columns);

/// Judges a gradient in T by the norm of its error as well. The bound of an element grows with the terms of its sum, which
/// cancel: a gradient times 0.9 stays below it. The norm of the error is a small part of the norm of the gradient,
/// because roundings have both signs. Where nearly all of a gradient cancels, its error is a small part of the bound of
/// its elements, and of the norm of what roundings can move its rows by. Engines in float and double have errors of at
/// most 20 epsilon of the norm, or 0.0017 of the norm of the elements' bounds and 1.4 epsilon of that of `roundings`; in
/// double, of which the reference has as many, 8.3 were seen where scores reach hundreds.
/// \param element    bound of an element
/// \param unit       relative rounding error of the factors
/// \param terms      that an element sums
/// \param columns    of k, for the gradient of a v that has fewer: its errors are those of the scores, sums of so many products
template <class T>
[[nodiscard]] Comparison judged_by_norm(const Comparison& comparison, double element,
                                        const GradientErrors& errors = {}, double unit = 0, Index terms = 0,
                                        Index columns = 0) {
  const Precision precision = Precision::of<T>(unit);
  return judged_by_norm(comparison,
                        gradient_norm_bound(comparison, precision, element, errors, terms, columns),
                        errors.size(), precision.smallest, unit > 0);
}

/// The tolerance for a gradient, like attention_tolerance. `magnitude` is the size of the terms it sums
/// (ReferenceGradients): terms cancel, their rounding errors do not.
template <class T>
[[nodiscard]] Tolerance gradient_tolerance(Index terms, double max_abs_score, double magnitude,
                                           double kv_unit = 0, double steps = 0) {
  const double eps = std::numeric_limits<T>::epsilon(), root = std::sqrt(static_cast<double>(terms));
  const double relative = eps * (8.0 + 4.0 * max_abs_score + root) + kv_unit * (2.0 + 2.0 * max_abs_score);
  return {.absolute = relative * magnitude + std::numeric_limits<T>::denorm_min() * (8 + root) * steps,
          .relative = relative};
}

/// The largest error that a correct attention in type T may have against the double reference.
///
/// A score has an error of about eps * max|s| (D products, then the exponent turns an absolute error of
/// the score into a relative error of p), and sums over `keys` terms add about eps * sqrt(keys). The
/// factor in front is a margin over the errors of correct kernels; `values` is max|v|, the scale of out.
/// \param kv_unit  relative rounding error of K and V before the arithmetic: 0, or that of their type in messages.
///     It moves a score by about unit * |s| and a value by unit * |v|.
template <class T>
[[nodiscard]] Tolerance attention_tolerance(Index keys, double max_abs_score, double max_abs_value,
                                            double kv_unit = 0) {
  return gradient_tolerance<T>(keys, max_abs_score, max_abs_value, kv_unit, 1);
}

}  // namespace ring_attention
