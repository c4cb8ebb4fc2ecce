// ldmatrix and mma.sync of a warp: fragments as the ISA's figures have them.
#include "ptx/memory.hpp"

namespace ptx {

float widened(u16 x, bool is_bf16) { return is_bf16 ? from_bf16(x) : from_fp16(x); }

float truncated(double x) {
  const float f = static_cast<float>(x);
  return std::fabs(static_cast<double>(f)) > std::fabs(x) ? std::nextafter(f, 0.0F) : f;
}

/// x1, x2, x4: lanes 8 j .. 8 j + 7 have the addresses of the rows of matrix j. modifiers: 1 transposed
void ldmatrix(Warp& w, const Instruction& in, u32) {
  u16 rows[32][8];
  const std::size_t count = in.v.size();
  for (u32 l = 0; l < 8 * count; ++l) {
    const u32 at = static_cast<u32>(address(w, in, static_cast<int>(l)));
    std::memcpy(rows[l], shared_read(w, in, at, 16, 16), 16);
  }
  for (std::size_t j = 0; j < count; ++j)
    for (u32 l = 0; l < 32; ++l) {
      const u32 row = l / 4, column = 2 * (l % 4);
      const u16(&matrix)[32][8] = rows;
      const std::size_t first = 8 * j;
      const u32 low = in.modifiers ? matrix[first + column][row] : matrix[first + row][column];
      const u32 high = in.modifiers ? matrix[first + column + 1][row] : matrix[first + row][column + 1];
      w.at<u32>(in.v[j])[l] = low | high << 16U;
    }
}

/// m16n8k16: v has d[4], a[4], b[2], c[4]. modifiers: 1 bf16
void mma(Warp& w, const Instruction& in, u32) {
  const bool is_bf16 = in.modifiers & 1U;
  float a[16][16], b[16][8];
  const auto half = [&](u32 operand, u32 i, u32 lane) {  // element i of a lane's registers
    const u32 pair = w.at<u32>(in.v[operand + i / 2])[lane];
    return widened(static_cast<u16>(pair >> (16 * (i % 2))), is_bf16);
  };
  for (u32 l = 0; l < 32; ++l) {
    const u32 group = l / 4, thread = l % 4;
    for (u32 i = 0; i < 8; ++i)
      a[group + (i / 2 % 2 ? 8 : 0)][2 * thread + i % 2 + (i >= 4 ? 8 : 0)] = half(4, i, l);
    for (u32 i = 0; i < 4; ++i) b[2 * thread + i % 2 + (i >= 2 ? 8 : 0)][group] = half(8, i, l);
  }
  for (u32 l = 0; l < 32; ++l) {
    float result[4];
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = l / 4 + (i >= 2 ? 8 : 0), column = 2 * (l % 4) + i % 2;
      double sum = static_cast<double>(w.at<float>(in.v[10 + i])[l]);
      for (u32 k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * static_cast<double>(b[k][column]);
      result[i] = truncated(sum);
    }
    for (u32 i = 0; i < 4; ++i) w.at<float>(in.v[i])[l] = result[i];
  }
}

}  // namespace ptx
