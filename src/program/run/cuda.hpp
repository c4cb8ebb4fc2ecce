/// \file
/// `ring-attention run --device cuda`.
#pragma once

#include "program/run/job.hpp"

namespace ring_attention {

/// Does this build have the GPU parts, and every machine as many GPUs as ranks (or may they share)? Then this rank uses
/// its GPU from now on. Collective. \throws AgreedError that says what is missing
void require_gpus(const Communicator& comm, const GpuOptions& options);

/// Runs on the GPUs. Returns the exit code, as run_command does. Collective.
int run_on_gpus(const RunContext& place);

}  // namespace ring_attention
