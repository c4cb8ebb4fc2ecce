/// \file
/// Converts arrays in device memory from one type to another, and adds them.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// to[i] = from[i], rounded to nearest even. Numbers beyond the largest fp16 or bf16 become infinity.
void narrow(const float* from, void* to, Index count, Type type, StreamHandle stream);
/// to[i] = from[i], exactly.
void widen(const void* from, float* to, Index count, Type type, StreamHandle stream);
/// sum[i] += add[i].
void add(float* sum, const float* add, Index count, StreamHandle stream);

}  // namespace ring_attention::cuda
