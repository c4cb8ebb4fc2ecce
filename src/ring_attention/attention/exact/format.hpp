/// \file
/// How exact sums (exact/sum.hpp) lie in memory, for the kernels that add to them. It includes nothing, so that kernel files
/// may include it.
#pragma once

namespace ring_attention {

/// An integer in the memory of a float: rows of exact sums lie in arrays of floats.
typedef int ExactWord __attribute__((may_alias));  // NOLINT(modernize-use-using): the attribute

/// Bits of a digit: digit j of a number counts multiples of 2^(22 j).
inline constexpr int exact_digit_bits = 22;
/// How level 0 is stored. A row without terms has 0, and a row with a term that is not finite has the largest number.
inline constexpr int exact_level_0 = 1 << 30;

}  // namespace ring_attention
