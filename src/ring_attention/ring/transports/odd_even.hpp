/// \file
/// `OddEvenTransport`: the blocking ring over MPI, with ordered sends and a barrier a hop.
#pragma once

#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/transports/pending_hop.hpp"

namespace ring_attention {

/// Even ranks send first, odd ranks receive first. If all sent first, each would wait for a receive that
/// no rank has posted, when a message is too large for MPI to buffer (16 KiB in MPICH's default).
/// The order completes for odd N as well: two even ranks are neighbours there, and the second of them
/// waits until the first has finished. A ring of one exchanges nothing.
///
/// start() only stores its argument; the whole hop happens in finish() and is exposed.
class OddEvenTransport : public Transport {
 public:
  /// \param channel  keeps parcels apart (K,V and their gradients)
  explicit OddEvenTransport(const Communicator& comm, int channel = 0) : comm_(comm), channel_(channel) {}

  [[nodiscard]] Ring ring() const override { return {comm_.rank(), comm_.size()}; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  void start(const Hop& hop) override { pending_.start(hop); }
  void finish() override;
  void drain() override { pending_.require_idle(); }

 private:
  const Communicator& comm_;
  int channel_;
  PendingHop pending_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention
