/// \file
/// `TensorMap`: the description of a tensor in device memory that TMA needs. The host makes it and passes it by value.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include "ring_attention/cuda/check.hpp"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

using TensorMap = CUtensorMap;

/// The driver's cuTensorMapEncodeTiled. It is looked up by name, so that programs start without a driver.
inline decltype(&cuTensorMapEncodeTiled) encode_tiled() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
#else
    check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found));
#endif
    check(found == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled: it is too old");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  return function;
}

/// The map of `matrices` contiguous matrices of `rows` x `dim` 16-bit numbers. TMA copies boxes of box_rows x 64
/// numbers into swizzled rows of 128 bytes (see matrix_descriptor). dim is a multiple of 8, box_rows at most 256.
inline TensorMap make_tensor_map(const void* first, Type type, int dim, Index rows, Index matrices,
                                 int box_rows) {
  const auto wide = [](Index n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[]{wide(dim), wide(rows), wide(matrices)};
  const cuuint64_t strides[]{wide(2 * dim), wide(2 * dim * rows)};  // in bytes, of rows and of matrices
  const cuuint32_t box[]{64, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t every[]{1, 1, 1};
  TensorMap map;
  const CUresult result = encode_tiled()(
      &map, type == Type::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
      const_cast<void*>(first), sizes, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled does not accept the tensor");
  return map;
}

}  // namespace ring_attention::cuda
