/// \file
/// `check(cudaError_t)`: CUDA's return codes as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace ring_attention::cuda {

/// Throws Error with CUDA's own name and text, and the place of the call, unless `code` is cudaSuccess. An error of a
/// kernel shows at a later call: the text then says what happened and not where.
void check(cudaError_t code, std::source_location where = std::source_location::current());

}  // namespace ring_attention::cuda
