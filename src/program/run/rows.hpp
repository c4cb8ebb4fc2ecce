/// \file
/// Rows of arrays for the oracle, in double.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// The chosen tokens of some heads of one batch, in double: [1, heads, rows, dim].
template <class T>
Tensor<double> gather_rows(View<const T> from, Index batch, Index first_head, Index heads,
                           const std::vector<Index>& rows) {
  Tensor<double> to({1, heads, static_cast<Index>(rows.size()), from.shape().dim});
  for (Index h = 0; h < heads; ++h)
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::ranges::copy(from.row(batch, first_head + h, rows[i]),
                        to.view().row(0, h, static_cast<Index>(i)).begin());
  return to;
}

/// Puts `part` [1, heads, rows, dim] at (batch, first_head, first_row) of `into`.
inline void scatter_rows(const Tensor<double>& part, View<double> into, Index batch, Index first_head,
                         Index first_row) {
  for (Index h = 0; h < part.shape().heads; ++h)
    for (Index i = 0; i < part.shape().seq; ++i)
      std::ranges::copy(part.view().row(0, h, i), into.row(batch, first_head + h, first_row + i).begin());
}

/// An array that is zero by definition: keys that no query sees, rows that see one key or none.
[[nodiscard]] inline bool is_zero(const Tensor<double>& array) {
  return std::ranges::all_of(array.view().elements(),
                             [](double x) { return x == 0 || x == negative_infinity<double>; });
}

}  // namespace ring_attention
