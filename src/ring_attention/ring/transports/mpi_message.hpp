/// \file
/// What the MPI transports do with a message: its count, its check, the wait for it. Lengths beyond 2^31 bytes need MPI-4's
/// large counts.
#pragma once

#include <sched.h>
#include <unistd.h>

#include "ring_attention/core/error.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

inline void count_sent(TransportStatistics& statistics, std::span<const std::byte> bytes) {
  ++statistics.messages_sent;
  statistics.bytes_sent += static_cast<Index>(bytes.size());
}

/// Between two questions whether a message is here: MPICH polls while it waits, and takes a core from ranks that work. Waits
/// longer each time: first not at all, then one yield to the scheduler, then 20 microseconds.
inline void back_off(int calls) {
  if (calls > 300)
    usleep(20);
  else if (calls > 100)
    sched_yield();
}

/// Counts a message that arrived. \throws Error when it is shorter than expected
inline void check_received(TransportStatistics& statistics, MPI_Status status, std::span<const std::byte> due,
                           int sender) {
  MPI_Count received = 0;
  check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &received));
  require(received == std::ssize(due), "ring: rank " + std::to_string(sender) + " sent " +
                                           std::to_string(received) + " bytes where " +
                                           std::to_string(due.size()) + " were due");
  statistics.bytes_received += static_cast<Index>(received);
}

}  // namespace ring_attention
