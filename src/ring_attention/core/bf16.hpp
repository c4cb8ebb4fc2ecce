/// \file
/// `Bf16` and `Fp16`: types for storage and messages; arithmetic is float's.
#pragma once

#include <bit>
#include <cstdint>

namespace ring_attention {

/// The upper half of a float: 8 bits of exponent, like float, and 8 significant bits: relative rounding error at most 2^-8.
struct Bf16 {
  std::uint16_t bits = 0;

  Bf16() = default;
  /// The nearest bf16, ties to even. Above the largest finite one: infinity. NaN stays NaN.
  explicit Bf16(float x) {
    const auto word = std::bit_cast<std::uint32_t>(x);
    const bool is_nan = (word & 0x7fffffffU) > 0x7f800000U;
    const std::uint32_t rounded = is_nan ? word | 0x00400000U : word + 0x7fffU + ((word >> 16U) & 1U);
    bits = static_cast<std::uint16_t>(rounded >> 16U);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U); }

  static constexpr double unit = 0x1p-8;  ///< the relative rounding error
};

/// IEEE half precision. The kernels of the GPU do the conversions.
struct Fp16 {
  std::uint16_t bits = 0;
};

}  // namespace ring_attention
