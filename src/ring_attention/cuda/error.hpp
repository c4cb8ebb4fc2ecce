/// \file
/// `check(cudaError_t)`: CUDA's return codes as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::cuda {

/// Throws Error with CUDA's name and text of the error and the source line of the call, unless `code` is cudaSuccess.
/// CUDA reports the error of a kernel at a later call: then the source line is not the line of the launch.
inline void check(cudaError_t code, std::source_location where = std::source_location::current()) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // clears an error that is not sticky, so that it is reported once
  throw Error(
      located(std::string("CUDA: ") + cudaGetErrorName(code) + ": " + cudaGetErrorString(code), where));
}

}  // namespace ring_attention::cuda
