/// \file
/// Which GPU a rank uses.
#pragma once

#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Which ranks share a physical GPU, of the GPUs that are current now. UUIDs tell GPUs apart: a launcher
/// may show every rank another GPU under the same number (CUDA_VISIBLE_DEVICES).
struct GpuShare {
  int ranks;      ///< that use this rank's GPU, with this rank
  bool anywhere;  ///< do any ranks of the job share one?
};
/// Collective.
[[nodiscard]] GpuShare gpu_share(const Communicator& comm);

/// Selects a GPU for this rank: rank i of this machine takes GPU i, modulo their number, of those that it
/// sees and that are not too old. Collective.
/// \throws AgreedError when a rank sees none, or shares one and may not
GpuShare use_own_gpu(const Communicator& comm, bool may_share);

}  // namespace ring_attention
