#include "ring_attention/cuda/check.hpp"

#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::cuda {

void throw_error(cudaError_t code, const std::source_location& where) {
  (void)cudaGetLastError();  // clears an error that is not sticky, so that it is reported once
  throw Error(
      located(std::string("CUDA: ") + cudaGetErrorName(code) + ": " + cudaGetErrorString(code), where));
}

void check(bool condition, const char* message, std::source_location where) {
  require(condition, message, where);
}

}  // namespace ring_attention::cuda
