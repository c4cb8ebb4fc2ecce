/// \file
/// `NcclAllToAll`: an all-to-all of device memory, from GPU to GPU with NCCL.
#pragma once

#include <memory>
#include <utility>

#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/ring/transports/nccl.hpp"

namespace ring_attention {

/// One rank's end, over the ranks of an NcclWorld: one group of sends and receives. The pieces are in device memory.
///
/// all_to_all() begins when the work that is already on `compute` is done, and work that is enqueued there later begins when all
/// pieces are here: nothing else of the rank could hide it. The host waits, too, unless the world enqueues. Statistics count
/// the time on the GPU, if the host waits.
class NcclAllToAll : public AllToAll {
 public:
  /// \param world    of the group; a group of one needs no NCCL
  /// \param compute  the stream that writes and reads the pieces
  NcclAllToAll(std::shared_ptr<NcclWorld> world, cuda::StreamHandle compute)
      : world_(std::move(world)), compute_(compute) {}

  [[nodiscard]] int rank() const override { return world_->ring().rank; }
  [[nodiscard]] int size() const override { return world_->ring().size; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  /// \throws Error, after it has aborted the communicator, if NCCL fails or takes longer than the time-out of the world
  void all_to_all(const Pieces& pieces) override;

 private:
  std::shared_ptr<NcclWorld> world_;
  cuda::StreamHandle compute_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention
