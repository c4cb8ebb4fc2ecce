/// \file
/// `run --device cuda`, in a build with the GPU parts and in one without.
#pragma once

#include "program/run/context.hpp"

namespace ring_attention {

/// Call require_gpus() first. The result is that of run_command(). Collective.
int run_on_gpus(const RunContext& context);

}  // namespace ring_attention
