/// \file
/// The clocks of the ranks: how far each is from that of rank 0.
#pragma once

#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Seconds of this machine's clock, which never goes back. Clocks of two machines differ by any amount.
[[nodiscard]] double clock_seconds();

/// What to add to clock_seconds() of this rank for the clock of rank 0.
struct ClockOffset {
  double seconds = 0;     ///< 0 on the ranks that share rank 0's clock
  double round_trip = 0;  ///< of the fastest message that was exchanged; the error is at most half of it
};

/// Ranks of one machine share its clock, so they get the same offset: an estimate for each of them would differ by its
/// error, and a message could seem to arrive before it was sent. Rank 0 exchanges a few messages with the owner of each
/// other clock, one after the other. The fastest one counts: the owner is taken to answer in the middle of its round trip.
///
/// Collective. Source: Cristian, Probabilistic clock synchronization, Distributed Computing 3 (1989).
/// \param owner  the lowest of the ranks that share this rank's clock: host_group(comm).first
/// \param now    this rank's clock
[[nodiscard]] ClockOffset clock_offset(const Communicator& comm, int owner, double (*now)() = clock_seconds);

}  // namespace ring_attention
