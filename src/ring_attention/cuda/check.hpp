/// \file
/// `check`: CUDA's return codes and broken conditions as exceptions. Kernels include this file, so it includes little.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace ring_attention::cuda {

/// Throws Error with CUDA's name and text of the error and the source line of the call.
[[noreturn]] void throw_error(cudaError_t code, const std::source_location& where);

/// throw_error unless `code` is cudaSuccess. CUDA reports the error of a kernel at a later call: then the source line is
/// not the line of the launch.
inline void check(cudaError_t code, std::source_location where = std::source_location::current()) {
  if (code != cudaSuccess) throw_error(code, where);
}

/// `require` of core/error.hpp.
void check(bool condition, const char* message, std::source_location where = std::source_location::current());

}  // namespace ring_attention::cuda
