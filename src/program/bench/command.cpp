#include <cstdio>

#include "program/bench/measure.hpp"
#include "program/bench/on_gpus.hpp"
#include "program/cpu_backend.hpp"
#include "program/gpu.hpp"

namespace ring_attention {

namespace {

/// \param trace  null: none
int bench_traced(const Communicator& comm, const BenchOptions& given, Activity& activity, Trace* trace) {
  BenchOptions options = given;
  const bool on_gpu = options.device == "cuda";
  if (on_gpu) require_gpus(comm, options);
  const bool is_double = options.dtype == "float64";
  choose_partition(options, options.device,
                   {options.q(), options.kv(), options.causal,
                    static_cast<Index>(is_double ? sizeof(double) : sizeof(float)), options.backward},
                   comm.size());
  const BenchReport report = on_gpu      ? bench_on_gpus(comm, options, activity, trace)
                             : is_double ? measure(comm, options, activity, trace, cpu_backend<double>)
                                         : measure(comm, options, activity, trace, cpu_backend<float>);
  if (comm.rank() == 0)
    std::fputs((options.json ? to_json(report, options) : to_text(report, options)).c_str(), stdout);
  return 0;
}

}  // namespace

int bench_command(const Communicator& comm, const BenchOptions& options, Activity& activity) {
  return with_trace(comm, options.trace, activity,
                    [&](Trace* trace) { return bench_traced(comm, options, activity, trace); });
}

}  // namespace ring_attention
