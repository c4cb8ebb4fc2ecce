/// \file
/// `Precision`: the types that a code may compute in, and rounding to them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "ring_attention/core/bf16.hpp"

namespace ring_attention::diagnose {

/// From the finest to the coarsest. `half` stands for fp16 and for TF32: both have 11 significant bits.
enum class Precision { float64, float32, half, bf16 };

inline constexpr std::array all_precisions{Precision::float64, Precision::float32, Precision::half,
                                           Precision::bf16};

[[nodiscard]] inline std::string name(Precision precision) {
  constexpr std::array names{"float64", "float32", "fp16", "bf16"};
  return names.at(static_cast<std::size_t>(precision));
}

/// The nearest number of that type; beyond its range infinity. Half: without the limits of its exponent.
[[nodiscard]] inline double rounded(double x, Precision precision) {
  switch (precision) {
    case Precision::float64: return x;
    case Precision::float32: return static_cast<double>(static_cast<float>(x));
    case Precision::half: {
      int exponent = 0;
      const double significand = std::frexp(x, &exponent);
      return std::ldexp(std::nearbyint(std::ldexp(significand, 11)), exponent - 11);
    }
    case Precision::bf16: return static_cast<double>(static_cast<float>(Bf16(static_cast<float>(x))));
  }
  return x;
}

/// What a code in that type computes with: sums, maxima and lse are in float at least.
[[nodiscard]] inline Precision sums_of(Precision precision) {
  return std::min(precision, Precision::float32);
}

}  // namespace ring_attention::diagnose
