/// \file
/// `Residual`: how far arrays are from those of a hypothesis, and whether rounding alone could do it.
///
/// A row is one token of one head. Its error is the root mean square of the differences, in units of the size of its head,
/// or of the row where that is larger. So a wrong row shows whatever the others are.
#pragma once

#include <array>
#include <map>
#include <span>
#include <vector>

#include "diagnose/problem.hpp"
#include "diagnose/rounding.hpp"
#include "diagnose/rules.hpp"

namespace ring_attention::diagnose {

/// One number an array.
using PerArray = std::array<double, all_arrays.size()>;
[[nodiscard]] inline double& of(PerArray& numbers, Array array) {
  return numbers[static_cast<std::size_t>(array)];
}
[[nodiscard]] inline double of(const PerArray& numbers, Array array) {
  return numbers[static_cast<std::size_t>(array)];
}

/// Errors of all rows of some arrays.
struct Residual {
  std::vector<double> rows;  ///< infinite where one is finite and the other is not
  double worst = 0;          ///< the largest error, in tolerances: at most 1 where rounding explains all rows

  /// The mean of the squared errors, each at most 1.
  [[nodiscard]] double square() const;
  /// The error that this share of the rows stays below.
  [[nodiscard]] double quantile(double share) const;
};

/// What errors are measured in: sizes of the right arrays, and what rounding does to right results.
class Yardstick {
 public:
  explicit Yardstick(const Problem& problem);

  /// The size of a head: the root mean square of its finite elements.
  [[nodiscard]] double size(Array array, Index head) const;
  /// The largest error that a row of a right result in that type may have, whether steps are merged as states or as
  /// normalised results.
  [[nodiscard]] PerArray tolerances(Precision precision) const;
  /// The same where they are merged as states, as simulated rings do.
  [[nodiscard]] PerArray tolerances_of_states(Precision precision) const;
  /// The errors of `got` against `want`, the arrays that both have.
  /// \param rounded  the same as `want`, computed in the type of the code: rows that rounding moves far, or that overflow
  ///     only there, say nothing, and are left out
  [[nodiscard]] Residual residual(const Arrays& got, const Arrays& want, std::span<const Array> which,
                                  const PerArray& tolerances, const Arrays* rounded = nullptr) const;
  /// The largest row error of each array, of those rows.
  [[nodiscard]] PerArray largest(const Arrays& got, const Arrays& want,
                                 const Arrays* rounded = nullptr) const;
  /// The error of one row; negative where `want` cannot be had in float, so that nothing can be said.
  [[nodiscard]] double row_error(Array array, Index head, std::span<const double> got,
                                 std::span<const double> want) const;

 private:
  [[nodiscard]] PerArray tolerances_of(const std::vector<Rules>& rings, Precision precision,
                                       std::map<Precision, PerArray>& known) const;

  const Problem* problem_;
  std::array<std::vector<double>, all_arrays.size()> sizes_;
  mutable std::map<Precision, PerArray> of_right_, of_states_;
};

/// No code in float returns such a number: a row that should have one is not compared.
inline constexpr double beyond_float = 1e300;

/// Errors of right codes differ by what they sum in which order: a margin over the one that is simulated here.
inline constexpr double safety = 6;

/// The coarsest of the types that hold every element of these arrays exactly: the type a code returned.
[[nodiscard]] Precision precision_of(const Arrays& arrays, std::span<const Array> which);

}  // namespace ring_attention::diagnose
