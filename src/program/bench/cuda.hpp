/// \file
/// `ring-attention bench --device cuda`.
#pragma once

#include "program/activity.hpp"
#include "program/bench/report.hpp"

namespace ring_attention {

/// Measures on the GPUs that require_gpus() has chosen. Collective.
BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity);

}  // namespace ring_attention
