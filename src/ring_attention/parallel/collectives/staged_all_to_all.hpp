/// \file
/// `StagedAllToAll`: an all-to-all of device memory by means of the host, for machines without NCCL.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"

namespace ring_attention {

/// Moves pieces in device memory through pinned host memory, with an all-to-all that moves host memory, for example
/// MpiAllToAll. all_to_all() begins when the work that is already on the stream is done. Memory: as much of the host as it
/// sends and receives.
class StagedAllToAll : public AllToAll {
 public:
  /// \param stream  the stream that writes and reads the pieces
  /// \param alive   is called while the host waits for work that is already on the stream
  StagedAllToAll(cuda::StreamHandle stream, std::unique_ptr<AllToAll> host, std::function<void()> alive = {})
      : stream_(stream), host_(std::move(host)), alive_(std::move(alive)) {}

  [[nodiscard]] int rank() const override { return host_->rank(); }
  [[nodiscard]] int size() const override { return host_->size(); }
  [[nodiscard]] const TransportStatistics& statistics() const override { return host_->statistics(); }
  void all_to_all(const Pieces& pieces) override;

 private:
  cuda::StreamHandle stream_;
  std::unique_ptr<AllToAll> host_;
  std::function<void()> alive_;
};

}  // namespace ring_attention
