/// \file
/// The element types of device memory, inside kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ring_attention/cuda/check.hpp"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// float, __nv_bfloat16 or __half to fp32, exactly.
__device__ float widened(auto x) { return static_cast<float>(x); }
/// Rounds fp32 to one of them, to nearest even.
template <class T>
__device__ T narrowed(float x) {
  return static_cast<T>(x);
}

/// Calls use(T{}) with the C++ type of `type`.
void with_type(Type type, auto use) {
  switch (type) {
    case Type::fp32: return use(float{});
    case Type::bf16: return use(__nv_bfloat16{});
    case Type::fp16: return use(__half{});
  }
  check(false, "unknown type of device memory");
}

/// For the tensor-core kernels: calls use.operator()<T, columns>(). T is bf16 or fp16, columns is 64 if dim <= 64 and
/// 128 otherwise.
void with_half_type_and_columns(Type type, int dim, auto use) {
  check(type != Type::fp32 && dim <= 128, "a tensor-core kernel takes bf16 or fp16 and a dim of at most 128");
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
