/// \file
/// The largest numbers that flags, files and arguments may have. Sums, differences and products of a few of them fit an
/// Index, so that no other code has to test for overflow.
#pragma once

#include <algorithm>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// The largest position of a token, and the largest length of a sequence or of a window. Exact in a double.
inline constexpr Index largest_position = Index{1} << 53U;

/// The largest number of ranks, heads, columns, layers and so on. Fits an int.
inline constexpr Index largest_count = (Index{1} << 31U) - 1;

/// The most elements of an array: more than any job can hold.
inline constexpr Index most_elements = Index{1} << 48U;

[[nodiscard]] constexpr bool within(Index number, Index least, Index most) {
  return least <= number && number <= most;
}

/// Has an array of this shape at most most_elements? An extent of 0 counts as 1: the others are bounded as well. False for
/// a negative extent.
[[nodiscard]] constexpr bool fits(const Shape& shape) {
  Index left = most_elements;
  for (const Index extent : {shape.batch, shape.heads, shape.seq, shape.dim})
    left = extent < 0 ? 0 : left / std::max<Index>(extent, 1);
  return left > 0;
}

}  // namespace ring_attention
