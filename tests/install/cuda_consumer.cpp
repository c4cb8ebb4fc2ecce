// Links the GPU parts of the installed library; starts on a machine without a driver, too.
#include <cstdio>

#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"

int main() {
  const std::string why = ring_attention::cuda::why_no_device();
  std::printf("%s\n", why.empty() ? ring_attention::cuda::name_of(0).c_str() : why.c_str());
  for (const auto& kernel : ring_attention::cuda::forward_kernels())
    std::printf("%d %s\n", kernel.number, kernel.name);
  return ring_attention::cuda::forward_kernels().empty() ? 1 : 0;
}
