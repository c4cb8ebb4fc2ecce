/// \file
/// `check(cudaError_t)`: CUDA's return codes as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace ring_attention::cuda {

/// Throws Error with CUDA's name and text of the error and the source line of the call, unless `code` is cudaSuccess.
/// CUDA reports the error of a kernel at a later call: then the source line is not the line of the launch.
void check(cudaError_t code, std::source_location where = std::source_location::current());

}  // namespace ring_attention::cuda
