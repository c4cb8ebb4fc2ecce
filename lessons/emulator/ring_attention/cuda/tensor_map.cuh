// The emulator's src/ring_attention/cuda/tensor_map.cuh.
#pragma once

#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

struct TensorMap {
  const void* first;
  Index dim, rows, matrices;
  int box_rows;
};

inline TensorMap make_tensor_map(const void* first, Type, int dim, Index rows, Index matrices, int box_rows) {
  require(dim > 0 && rows > 0 && matrices > 0 && box_rows > 0 && box_rows <= 256,
          "a tensor map has invalid sizes");
  require(dim % 8 == 0 && reinterpret_cast<std::uintptr_t>(first) % 16 == 0, "a tensor map is not aligned");
  return {first, dim, rows, matrices, box_rows};
}

}  // namespace ring_attention::cuda
