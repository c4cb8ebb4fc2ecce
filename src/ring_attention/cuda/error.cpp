#include "ring_attention/cuda/error.hpp"

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::cuda {

void check(cudaError_t code, std::source_location where) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // clears an error that is not sticky, so that it is reported once
  throw Error(
      located(std::string("CUDA: ") + cudaGetErrorName(code) + ": " + cudaGetErrorString(code), where));
}

}  // namespace ring_attention::cuda
