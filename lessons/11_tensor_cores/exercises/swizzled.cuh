// A tile of 16-bit numbers as TMA writes it: rows of 128 bytes, with piece c of row r (16 bytes) at c ^ (r % 8).
#pragma once

#include "exercises.hpp"

namespace ring_attention::lesson_11 {

__device__ inline float element(const __nv_bfloat16* rows, int row, int column) {
  return __bfloat162float(rows[dim * row + ((column / 8) ^ (row % 8)) * 8 + column % 8]);
}

}  // namespace ring_attention::lesson_11
