/// \file
/// Arrays as a user's code wrote them, in any order of axes, whole or one a rank, to `Arrays`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/problem.hpp"

namespace ring_attention::diagnose {

/// An array of any shape.
struct RawArray {
  std::vector<Index> extents;
  std::vector<double> elements;  ///< row-major
};

/// "[2, 24, 16]"
[[nodiscard]] std::string shape_text(const std::vector<Index>& extents);

/// One array in the order `[heads, tokens, dim]`, and what had to be done to it: one sentence, or none.
struct Arranged {
  Tensor<double> array;
  std::string says;
};

/// The axes are found by their extents; those of extent 1 do not count. dk and dv of all query heads are summed over
/// the groups. Rows behind the last token are cut off.
/// \param tokens  those that it should hold: all, or those of a rank
/// \returns nothing when the shape does not fit
[[nodiscard]] std::optional<Arranged> arranged(const Case& which, Array array, Index tokens,
                                               const RawArray& raw);

/// The rows of the ranks, each to its position.
[[nodiscard]] Tensor<double> joined(const Problem& problem, const std::vector<Tensor<double>>& of_ranks);

}  // namespace ring_attention::diagnose
