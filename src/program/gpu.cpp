#include "program/gpu.hpp"

#include "program/bench/measure.hpp"
#include "program/gpu_backend.hpp"
#include "program/run/job.hpp"

namespace ring_attention {
namespace {

/// Calls use(a value of the type that --dtype names).
auto with_type(const std::string& type, const auto& use) {
  return type == "bf16" ? use(Bf16{}) : type == "fp16" ? use(Fp16{}) : use(float{});
}

}  // namespace

void require_gpus(const Communicator& comm, const DeviceOptions& options) {
#ifndef RING_ATTENTION_HAS_NCCL
  if (options.transport == "nccl")
    throw AgreedError(
        "--transport nccl: this program was built without NCCL: build it with NCCL_ROOT set, or use staged");
#endif
  (void)use_own_gpu(comm, options.share_gpu);
}

int run_on_gpus(const RunContext& context) {
  return with_type(context.options.dtype,
                   [&](auto type) { return run_on(context, gpu_backend<decltype(type)>); });
}

BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity,
                          Trace* trace) {
  return with_type(options.dtype, [&](auto type) {
    return measure(comm, options, activity, trace, gpu_backend<decltype(type)>);
  });
}

}  // namespace ring_attention
