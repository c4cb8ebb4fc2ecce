/// \file
/// The element types of device memory, inside kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// Converts to fp32, exactly.
__device__ inline float widened(float x) { return x; }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widened(__half x) { return __half2float(x); }

/// Rounds fp32 to T, to nearest even.
template <class T>
__device__ T narrowed(float x);
template <>
__device__ inline float narrowed<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 narrowed<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half narrowed<__half>(float x) {
  return __float2half_rn(x);
}

/// Calls use(T{}) with the C++ type of `type`.
template <class Use>
void with_type(Type type, Use use) {
  switch (type) {
    case Type::fp32: return use(float{});
    case Type::bf16: return use(__nv_bfloat16{});
    case Type::fp16: return use(__half{});
  }
  require(false, "unknown type of device memory");
}

/// For the tensor-core kernels: calls use.operator()<T, columns>(). T is bf16 or fp16, columns is 64 if dim <= 64 and
/// 128 otherwise.
template <class Use>
void with_half_type_and_columns(Type type, int dim, Use use) {
  require(type != Type::fp32 && dim <= 128,
          "a tensor-core kernel takes bf16 or fp16 and a dim of at most 128");
  const auto with_columns = [&]<class T>(T) {
    if (dim <= 64)
      use.template operator()<T, 64>();
    else
      use.template operator()<T, 128>();
  };
  if (type == Type::bf16)
    with_columns(__nv_bfloat16{});
  else
    with_columns(__half{});
}

}  // namespace ring_attention::cuda
