// In place of gpu.cpp and on_gpus.cpp, where the build has no CUDA.
#include "program/bench/on_gpus.hpp"
#include "program/gpu.hpp"
#include "program/run/on_gpus.hpp"
#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention {

void require_gpus(const Communicator&, const DeviceOptions&) {
  throw AgreedError(
      "--device cuda: this program was built without CUDA: build it where nvcc is, with "
      "-DRING_ATTENTION_CUDA=ON, or "
      "leave it out to use the CPU");
}
int run_on_gpus(const RunContext&) { return 2; }
BenchReport bench_on_gpus(const Communicator&, const BenchOptions&, Activity&, Trace*) { return {}; }

}  // namespace ring_attention
