/// \file
/// The clocks of the ranks: how far each is from that of rank 0.
#pragma once

#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Seconds of this machine's clock, which never goes back. Clocks of two machines differ by any amount.
[[nodiscard]] double clock_seconds();

/// What to add to clock_seconds() of this rank for that of rank 0.
struct ClockOffset {
  double seconds = 0;  ///< 0 on rank 0
  double round_trip =
      0;  ///< of the fastest of the messages that were exchanged: the error is at most half of it
};

/// Rank 0 exchanges a few messages with each rank, one rank after the other. The fastest one counts: rank 0's clock in the
/// middle of its round trip is taken for the time at which the other rank answered.
///
/// Collective. Source: Cristian, Probabilistic clock synchronization, Distributed Computing 3 (1989).
/// \param now  this rank's clock
[[nodiscard]] ClockOffset clock_offset(const Communicator& comm, double (*now)() = clock_seconds);

}  // namespace ring_attention
