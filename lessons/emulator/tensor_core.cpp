#include "emulator/tensor_core.hpp"

#include <cstdint>
#include <cstring>

#include "emulator/machine.hpp"

// A tensor-core kernel spends a third of its time in these sums. The program takes the version for its CPU.
#if defined(__x86_64__) && !defined(__APPLE__)
#define FOR_EACH_CPU [[gnu::target_clones("default", "avx2", "avx512f")]]
#else
#define FOR_EACH_CPU
#endif

namespace ring_attention::emulator {
namespace {

// Eight columns of one row: GCC and Clang have the operators of numbers for them.
typedef float Floats [[gnu::vector_size(32)]];
typedef std::int32_t Ints [[gnu::vector_size(32)]];
typedef double Doubles [[gnu::vector_size(64)]];
typedef std::int64_t Longs [[gnu::vector_size(64)]];

// Four rows at a time are 32 independent sums.
FOR_EACH_CPU void add_rounded(float* c, const float* a, const float* b, unsigned rows, unsigned columns) {
  for (unsigned i = 0; i < rows; i += 4)
    for (unsigned j = 0; j < columns; j += 8) {
      Floats sums[4], of_b;
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

// As measured on tensor cores by Fasi et al. 2021 (PeerJ Computer Science 7:e330): the products are exact, all addends are
// truncated to the last bit of the largest one, and the sum is truncated to fp32. Newer tensor cores keep a few bits more:
// this is the largest error of all of them.
FOR_EACH_CPU void add_truncated(float* c, const float* a, const float* b, unsigned rows, unsigned columns) {
  for (unsigned i = 0; i < rows; ++i)
    for (unsigned j = 0; j < columns; j += 8) {
      Floats of_c, of_b;
      std::memcpy(&of_c, c + i * columns + j, sizeof of_c);
      Doubles addends[depth + 1] = {__builtin_convertvector(of_c, Doubles)};
      for (unsigned k = 0; k < depth; ++k) {
        std::memcpy(&of_b, b + k * columns + j, sizeof of_b);
        addends[k + 1] = static_cast<double>(a[i * depth + k]) * __builtin_convertvector(of_b, Doubles);
      }
      Doubles largest = {}, sum = {};
      for (const Doubles& x : addends) {
        const Doubles magnitude = x < 0 ? -x : x;
        largest = magnitude > largest ? magnitude : largest;
        sum += x;
      }
      const Doubles power = reinterpret_cast<Doubles>(reinterpret_cast<Longs>(largest) & 0x7ff0000000000000),
                    last_bits = 0x1p23 / power;  // the addends are counted in last bits: fewer than 2^24
      Doubles count = {};
      for (const Doubles& x : addends)
        count += __builtin_convertvector(__builtin_convertvector(x * last_bits, Ints), Doubles);
      const Doubles kept = count / last_bits;
      const Floats nearest = __builtin_convertvector(kept, Floats);
      const Doubles widened = __builtin_convertvector(nearest, Doubles);
      const Longs is_larger = (widened < 0 ? -widened : widened) > (kept < 0 ? -kept : kept);  // 0 or -1
      const Floats toward_zero = reinterpret_cast<Floats>(reinterpret_cast<Ints>(nearest) +
                                                          __builtin_convertvector(is_larger, Ints));
      // No addend but 0, or infinity or NaN. NOLINTNEXTLINE(misc-redundant-expression): those less themselves are NaN.
      const Longs is_special = (largest == 0) | (sum - sum != 0);
      of_c = __builtin_convertvector(is_special, Ints) ? __builtin_convertvector(sum, Floats) : toward_zero;
      std::memcpy(c + i * columns + j, &of_c, sizeof of_c);
    }
}

}  // namespace

void add_product(float* c, const float* a, const float* b, unsigned rows, unsigned columns) {
  (options().truncated_sums ? add_truncated : add_rounded)(c, a, b, rows, columns);
}

void mma(Half type, const MmaLane* const* lanes) {
  float a[16][depth], b[depth][8], d[16][8];
  const auto element = [&](unsigned both, unsigned which) {
    return widened(type, both >> (16U * which) & 0xffffU);
  };
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned g = lane / 4, t = lane % 4 * 2;
    for (unsigned which = 0; which < 2; ++which) {
      for (unsigned i = 0; i < 4; ++i)
        a[g + 8 * (i % 2)][t + 8 * (i / 2) + which] = element(lanes[lane]->a[i], which);
      for (unsigned i = 0; i < 2; ++i) b[t + 8 * i + which][g] = element(lanes[lane]->b[i], which);
    }
    for (unsigned i = 0; i < 2; ++i) std::memcpy(&d[g + 8 * i][t], lanes[lane]->d + 2 * i, 8);
  }
  add_product(d[0], a[0], b[0], 16, 8);
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 2; ++i)
      std::memcpy(lanes[lane]->d + 2 * i, &d[lane / 4 + 8 * i][lane % 4 * 2], 8);
}

}  // namespace ring_attention::emulator
