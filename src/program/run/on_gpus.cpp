#include "program/run/on_gpus.hpp"

#include "program/gpu_backend.hpp"
#include "program/run/job.hpp"

namespace ring_attention {

int run_on_gpus(const RunContext& context) {
  return with_gpu_type(context.options.dtype,
                       [&](auto type) { return run_on(context, gpu_backend<decltype(type)>); });
}

}  // namespace ring_attention
