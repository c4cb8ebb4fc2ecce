/// \file
/// What this process does with MPI, counted by MPI's profiling interface.
///
/// A program that is linked with mpi_counter.cpp calls the functions there when it says MPI_Send, MPI_Recv, MPI_Isend,
/// MPI_Irecv, MPI_Testall or MPI_Barrier. They count, and call PMPI_Send and so on, which are the same functions under
/// their other name. So a lesson's idea says nothing about counting. The library's transports use the large-count calls
/// (MPI_Send_c), which are not counted; they count for themselves.
#pragma once

#include "ring_attention/core/shape.hpp"

namespace ring_attention::mpi_counter {

/// The messages of one tag.
struct Traffic {
  Index hops = 0;   ///< messages sent
  Index bytes = 0;  ///< sent
  /// Time inside MPI_Send, MPI_Recv and MPI_Barrier, and from the first MPI_Testall that finds a message missing to the
  /// one that finds all of them, but not while the rank computes.
  double exposed_seconds = 0;
};

/// Starts again with zero.
void reset();
/// Since reset(). Barriers count as tag 0.
[[nodiscard]] Traffic traffic(int tag = 0);

/// While the rank computes, MPI calls cost no exposed time.
void computing(bool now);

}  // namespace ring_attention::mpi_counter
