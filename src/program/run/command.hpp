/// \file
/// `ring-attention run`: attention of real arrays on the ranks of an MPI job.
#pragma once

#include "program/run/options.hpp"
#include "program/watchdog.hpp"

namespace ring_attention {

/// Reads, rotates, checks, writes. Each rank reads and writes only its own tokens. Collective.
/// Returns the exit code: 0, or 1 when --check failed (then nothing is written).
/// \param options   valid, and the same on all ranks
/// \param activity  gets every phase
/// \throws AgreedError for bad input
int run_command(const Communicator& comm, const RunOptions& options, Activity& activity);

}  // namespace ring_attention
