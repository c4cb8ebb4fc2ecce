#include "emulator/tensor_core.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "emulator/machine.hpp"

namespace ring_attention::emulator {
namespace {

constexpr unsigned depth = 16;

float toward_zero(double x) {
  const auto nearest = static_cast<float>(x);
  return std::abs(nearest) > std::abs(x) ? std::nextafter(nearest, 0.0F) : nearest;
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
  int exponent = 0;
  (void)std::frexp(largest, &exponent);
  const double last_bit = std::ldexp(1.0, exponent - 24);
  sum = 0;
  for (const double x : addends) sum += std::trunc(x / last_bit) * last_bit;
  return toward_zero(sum);
}

}  // namespace

void add_product(float* c, const float* a, const float* b, unsigned rows, unsigned columns) {
  if (options().truncated_sums) {
    for (unsigned i = 0; i < rows; ++i)
      for (unsigned j = 0; j < columns; ++j)
        c[i * columns + j] = truncated_sum(c[i * columns + j], a + i * depth, b + j, columns);
    return;
  }
  typedef float Eight [[gnu::vector_size(32)]];
  for (unsigned i = 0; i < rows; ++i)
    for (unsigned j = 0; j < columns; j += 8) {
      Eight sum, of_b;
      std::memcpy(&sum, c + i * columns + j, sizeof sum);
      for (unsigned k = 0; k < depth; ++k) {
        std::memcpy(&of_b, b + k * columns + j, sizeof of_b);
        sum += a[i * depth + k] * of_b;
      }
      std::memcpy(c + i * columns + j, &sum, sizeof sum);
    }
}

}  // namespace ring_attention::emulator
