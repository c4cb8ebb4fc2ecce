/// \file
/// `--device cuda`: what the commands call, in a build with the GPU parts and in one without.
#pragma once

#include "program/bench/report.hpp"
#include "program/run/context.hpp"

namespace ring_attention {

/// Selects the GPU of this rank. \throws AgreedError that names what is missing: the GPU parts in this build, or a GPU
/// for each rank (unless ranks may share one). Collective.
void require_gpus(const Communicator& comm, const DeviceOptions& options);

/// Call require_gpus() first. `trace` may be null. The results are those of run_command() and measure(). Collective.
int run_on_gpus(const RunContext& context);
BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity,
                          Trace* trace);

}  // namespace ring_attention
