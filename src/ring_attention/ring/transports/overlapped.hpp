/// \file
/// `OverlappedTransport`: messages that travel while the rank computes, over MPI.
#pragma once

#include <array>

#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/transports/pending_hop.hpp"

namespace ring_attention {

/// start() posts the receive, then the send; progress() lets MPI move what it can; finish() waits for the rest.
///
/// MPICH moves a message between two ranks of one machine only inside MPI calls, so computing without calls of
/// progress() hides nothing. The wait of finish() backs off (spin, yield, sleep), so that more ranks
/// than cores still move: a rank that spins takes the core from the rank it waits for.
class OverlappedTransport : public Transport {
 public:
  /// \param channel  keeps parcels apart (K,V and their gradients)
  explicit OverlappedTransport(const Communicator& comm, int channel = 0) : comm_(comm), channel_(channel) {}

  [[nodiscard]] Ring ring() const override { return {comm_.rank(), comm_.size()}; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  void start(const Hop& hop) override;
  void progress() override;
  void finish() override;
  void drain() override { pending_.require_idle(); }

 private:
  bool arrived();

  const Communicator& comm_;
  int channel_;
  std::array<MPI_Request, 2> requests_{MPI_REQUEST_NULL, MPI_REQUEST_NULL};  // receive, send
  std::array<MPI_Status, 2> statuses_{};
  bool done_ = false;  // both requests are complete
  PendingHop pending_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention
