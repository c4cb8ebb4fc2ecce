/// \file
/// `--device cuda`: what the commands call, in a build with the GPU parts and in one without.
#pragma once

#include "program/bench/report.hpp"
#include "program/run/job.hpp"

namespace ring_attention {

/// Does this build have the GPU parts that the options ask for, and every machine as many GPUs as ranks (or may ranks
/// share one)? Then this rank uses its GPU from now on. Collective. \throws AgreedError that says what is missing
void require_gpus(const Communicator& comm, const DeviceOptions& options);

/// After require_gpus(). Return what run_command() returns, and the measurements. Collective.
int run_on_gpus(const RunContext& context);
BenchReport bench_on_gpus(const Communicator& comm, const BenchOptions& options, Activity& activity);

}  // namespace ring_attention
