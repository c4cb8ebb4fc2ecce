/// \file
/// `ring-attention bench --device cuda`.
#pragma once

#include "ring_attention/app/bench_report.hpp"
#include "ring_attention/ring/activity.hpp"

namespace ring_attention {

/// Measures on the GPUs that require_gpus() has chosen. Collective.
BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity);

}  // namespace ring_attention
