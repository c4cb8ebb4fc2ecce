/// \file
/// The clocks of the ranks: how far each is from that of rank 0.
#pragma once

#include <vector>

#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Seconds of this machine's clock, which never goes back. Clocks of two machines differ by any amount.
[[nodiscard]] double clock_seconds();

/// What to add to clock_seconds() of this rank for the clock of rank 0.
struct ClockOffset {
  double seconds = 0;     ///< 0 on the ranks that share rank 0's clock
  double round_trip = 0;  ///< of the fastest message that was exchanged; the error is at most half of it
};

/// The messages of clock_offset(), each a number. Those between two ranks keep their order.
class ClockMessages {
 public:
  ClockMessages() = default;
  ClockMessages(const ClockMessages&) = delete;
  ClockMessages& operator=(const ClockMessages&) = delete;
  virtual ~ClockMessages() = default;

  virtual void send(double value, int to) = 0;
  /// \param soon  is the other rank about to send it?
  [[nodiscard]] virtual double receive(int from, bool soon) = 0;
};

/// Ranks of one machine share its clock, so they get the same offset: an estimate for each of them would differ by its
/// error, and a message could seem to arrive before it was sent. Rank 0 exchanges a few messages with the owner of each
/// other clock, one after the other. The fastest one counts: the owner is taken to answer in the middle of its round trip.
///
/// Collective. Source: Cristian, Probabilistic clock synchronization, Distributed Computing 3 (1989).
/// \param owners  for each rank the lowest of the ranks that share its clock, itself or HostGroup::first
/// \param now     this rank's clock
[[nodiscard]] ClockOffset clock_offset(ClockMessages& messages, int rank, const std::vector<int>& owners,
                                       double (*now)() = clock_seconds);
/// \param owner  of this rank
[[nodiscard]] ClockOffset clock_offset(const Communicator& comm, int owner, double (*now)() = clock_seconds);

}  // namespace ring_attention
