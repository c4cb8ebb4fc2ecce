// The numbers and sums of the tensor cores.
#pragma once

#include <bit>

namespace ring_attention::emulator {

constexpr unsigned depth = 16;  // of a product

enum class Half { bf16, fp16 };

// A number of 16 bits as fp32. The functions of CUDA do the same on the host, and take longer.
inline float widened(Half type, unsigned bits) {
  if (type == Half::bf16) return std::bit_cast<float>(bits << 16U);
  const float magnitude = std::bit_cast<float>((bits & 0x7fffU) << 13U) * 0x1p112F;
  const unsigned special = magnitude >= 0x1p16F ? 0x7f800000U : 0;  // infinity or NaN
  return std::bit_cast<float>(std::bit_cast<unsigned>(magnitude) | special | (bits & 0x8000U) << 16U);
}

// c [rows][columns] += a [rows][depth] b [depth][columns]. `rows` is a multiple of 4 and `columns` of 8. Each sum is
// rounded to nearest after each addition, in the order of k, or truncated as options().truncated_sums says.
void add_product(float* c, const float* a, const float* b, unsigned rows, unsigned columns);

// mma.m16n8k16: what each lane of a warp passes.
struct MmaLane {
  float* d;
  const unsigned* a;
  unsigned b[2];
};
void mma(Half type, const MmaLane* const* lanes);

}  // namespace ring_attention::emulator
