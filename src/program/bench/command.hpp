/// \file
/// `ring-attention bench`: what a ring takes on this job's machines, and what it should take.
#pragma once

#include "program/activity.hpp"
#include "program/bench/options.hpp"

namespace ring_attention {

/// Measures and prints. Collective; returns the exit code.
/// \throws AgreedError for flags that do not go together
int bench_command(const Communicator& comm, const BenchOptions& options, Activity& activity,
                  Watchdog& watchdog);

}  // namespace ring_attention
