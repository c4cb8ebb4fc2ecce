/// \file
/// Arrays from one type to another, in device memory.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// to[i] = from[i], rounded to nearest even: to half and bf16 beyond their largest number is infinity.
void narrow(const float* from, void* to, Index count, Type type, StreamHandle stream);
/// to[i] = from[i], exactly.
void widen(const void* from, float* to, Index count, Type type, StreamHandle stream);
/// sum[i] += add[i].
void add(float* sum, const float* add, Index count, StreamHandle stream);

}  // namespace ring_attention::cuda
