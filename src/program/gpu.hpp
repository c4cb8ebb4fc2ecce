/// \file
/// `--device cuda`: what the commands call first, in a build with the GPU parts and in one without.
#pragma once

#include "cli/device_options.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Selects the GPU of this rank. \throws AgreedError that names what is missing: the GPU parts in this build, or a GPU
/// for each rank (unless ranks may share one). Collective.
void require_gpus(const Communicator& comm, const DeviceOptions& options);

}  // namespace ring_attention
