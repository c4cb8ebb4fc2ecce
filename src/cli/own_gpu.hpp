/// \file
/// Which GPU is a rank's own.
#pragma once

#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Which ranks have one GPU between them, of the GPUs that are current when it is made. GPUs are known by their UUIDs:
/// numbers mean nothing where a launcher shows every rank another one (CUDA_VISIBLE_DEVICES).
class GpuShare {
 public:
  /// Collective.
  explicit GpuShare(const Communicator& comm);

  /// Ranks that have this rank's GPU, itself included.
  [[nodiscard]] int ranks() const { return ranks_; }
  /// Do any ranks of the job share one?
  [[nodiscard]] bool anywhere() const { return anywhere_; }

 private:
  int ranks_;
  bool anywhere_;
};

/// From now on this rank uses a GPU of its own: of those that it sees, the one of its number among the ranks of this
/// machine, counted round. Collective. \throws AgreedError when a rank sees none, or shares one and may not
GpuShare use_own_gpu(const Communicator& comm, bool may_share);

}  // namespace ring_attention
