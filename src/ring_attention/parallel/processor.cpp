#include "ring_attention/parallel/processor.hpp"

#include "ring_attention/parallel/cpu_device.hpp"

namespace ring_attention {

Processor cores(int threads, Isa isa) {
  const CpuOptions options{threads, isa};
  return {std::make_shared<CpuDevice<float>>(options), std::make_shared<CpuDevice<double>>(options)};
}

}  // namespace ring_attention
