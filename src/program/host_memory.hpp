/// \file
/// Memory of the host that a job must have before it begins.
#pragma once

#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// All ranks end together when one of them cannot have so many bytes for its shards. Collective. \throws AgreedError
void require_host_memory(const Communicator& comm, Index bytes);

}  // namespace ring_attention
