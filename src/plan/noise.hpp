/// \file
/// `noise_factor`: by how much a step takes longer or shorter than its average.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "ring_attention/core/mix.hpp"

namespace ring_attention::plan {

/// A log-normal factor of mean 1, a function of its arguments alone.
/// \param cv  coefficient of variation: standard deviation over mean
[[nodiscard]] inline double noise_factor(double cv, std::uint64_t seed, int rank, int step) {
  const std::uint64_t place = (static_cast<std::uint64_t>(rank) << 32U) | static_cast<std::uint64_t>(step);
  const std::uint64_t bits = mix(mix(seed) ^ place);
  const auto uniform = [](std::uint64_t word) { return (static_cast<double>(word >> 11U) + 0.5) * 0x1p-53; };
  const double normal =  // Box and Muller
      std::sqrt(-2 * std::log(uniform(bits))) * std::cos(2 * std::numbers::pi * uniform(mix(bits)));
  const double variance = std::log1p(cv * cv);
  return std::exp(std::sqrt(variance) * normal - variance / 2);
}

}  // namespace ring_attention::plan
