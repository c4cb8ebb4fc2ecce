/// \file
/// `ring-attention run`: attention of real arrays on the ranks of an MPI job.
#pragma once

#include "program/activity.hpp"
#include "program/run/options.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Reads, rotates, checks, writes. Each rank reads and writes only its own tokens. Collective.
/// Returns the exit code: 0, or 1 when --check failed (then nothing is written).
/// \param activity  is told what goes on; `watchdog` watches it and gets the --timeout
/// \throws AgreedError for bad input
int run_command(const Communicator& comm, const RunOptions& options, Activity& activity, Watchdog& watchdog);

}  // namespace ring_attention
