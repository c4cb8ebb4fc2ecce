#include "emulator/tensor_core.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator/machine.hpp"

namespace ring_attention::emulator {
namespace {

constexpr unsigned depth = 16;

float toward_zero(double x) {
  const auto nearest = static_cast<float>(x);
  return std::abs(nearest) > std::abs(x) ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) - 1)
                                         : nearest;
}

// As measured on tensor cores by Fasi et al. 2021 (PeerJ Computer Science 7:e330): the products are exact, all addends are
// truncated to the last bit of the largest one, and the sum is truncated to fp32. Newer tensor cores keep a few bits more:
// this is the largest error of all of them.
float truncated_sum(float c, const float* a, const float* b, unsigned columns) {
  double addends[depth + 1] = {c};
  for (unsigned k = 0; k < depth; ++k) addends[k + 1] = static_cast<double>(a[k]) * b[k * columns];
  double largest = 0, sum = 0;
  for (const double x : addends) {
    sum += x;
    largest = std::max(largest, std::abs(x));
  }
  if (largest == 0 || !std::isfinite(sum)) return static_cast<float>(sum);
  constexpr std::uint64_t exponent_bits = 0x7ff0000000000000U;
  const auto power = std::bit_cast<double>(std::bit_cast<std::uint64_t>(largest) & exponent_bits);
  const double last_bits = 0x1p23 / power;  // the addends are counted in last bits: fewer than 2^24
  std::int32_t count = 0;
  for (const double x : addends) count += static_cast<std::int32_t>(x * last_bits);
  return toward_zero(count / last_bits);
}

}  // namespace

void add_product(float* c, const float* a, const float* b, unsigned rows, unsigned columns) {
  if (options().truncated_sums) {
    for (unsigned i = 0; i < rows; ++i)
      for (unsigned j = 0; j < columns; ++j)
        c[i * columns + j] = truncated_sum(c[i * columns + j], a + i * depth, b + j, columns);
    return;
  }
  // Four rows and eight columns at a time are 32 independent sums.
  typedef float Eight [[gnu::vector_size(32)]];
  for (unsigned i = 0; i < rows; i += 4)
    for (unsigned j = 0; j < columns; j += 8) {
      Eight sums[4], of_b;
      for (unsigned row = 0; row < 4; ++row)
        std::memcpy(&sums[row], c + (i + row) * columns + j, sizeof of_b);
      for (unsigned k = 0; k < depth; ++k) {
        std::memcpy(&of_b, b + k * columns + j, sizeof of_b);
#pragma GCC unroll 4
        for (unsigned row = 0; row < 4; ++row) sums[row] += a[(i + row) * depth + k] * of_b;
      }
      for (unsigned row = 0; row < 4; ++row)
        std::memcpy(c + (i + row) * columns + j, &sums[row], sizeof of_b);
    }
}

}  // namespace ring_attention::emulator
