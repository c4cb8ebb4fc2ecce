// In place of run_cuda.cpp and bench_cuda.cpp, where the build has no CUDA.
#include "program/bench/cuda.hpp"
#include "program/run/cuda.hpp"

namespace ring_attention {

void require_gpus(const Communicator&, const GpuOptions&) {
  throw AgreedError(
      "--device cuda: this program was built without CUDA: build it where nvcc is, with "
      "-DRING_ATTENTION_CUDA=ON, or "
      "leave it out to use the CPU");
}

int run_on_gpus(const RunContext& place) {
  require_gpus(place.comm, place.options);
  return 2;
}

BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity&) {
  require_gpus(comm, options);
  return {};
}

}  // namespace ring_attention
