#include "program/bench/on_gpus.hpp"

#include "program/bench/measure.hpp"
#include "program/gpu_backend.hpp"

namespace ring_attention {

BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity,
                          Trace* trace) {
  return with_gpu_type(options.dtype, [&](auto type) {
    return measure(comm, options, activity, trace, gpu_backend<decltype(type)>);
  });
}

}  // namespace ring_attention
