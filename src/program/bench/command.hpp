/// \file
/// `ring-attention bench`: the times of a ring on this job's machines, measured and modelled.
#pragma once

#include "program/bench/options.hpp"
#include "program/watchdog.hpp"

namespace ring_attention {

/// Measures and prints. Collective; returns the exit code.
/// \param options  valid, and the same on all ranks
int bench_command(const Communicator& comm, const BenchOptions& options, Activity& activity);

}  // namespace ring_attention
