/// \file
/// `bench --device cuda`, in a build with the GPU parts and in one without.
#pragma once

#include "program/bench/report.hpp"

namespace ring_attention {

/// Call require_gpus() first. `trace` may be null. The result is that of measure(). Collective.
BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity,
                          Trace* trace);

}  // namespace ring_attention
