// Lesson 04, second part: from which message size does a ring deadlock in which all ranks send first?
#pragma once

#include <thread>

#include "common/lesson.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention {

// If all ranks of a ring MPI_Send first, do the sends of this size complete before a rank receives?
// MPI_Isend and MPI_Test find out without hanging: the receive is posted when the answer is known.
inline bool sends_complete_alone(std::size_t bytes, const Communicator& comm) {
  const Ring ring{comm.rank(), comm.size()};
  const int count = static_cast<int>(bytes);
  std::vector<std::byte> outgoing(bytes), incoming(bytes);
  MPI_Request send = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(outgoing.data(), count, MPI_BYTE, ring.next(), 1, comm.handle(), &send));
  int completed = 0;
  for (const double begin = MPI_Wtime(); completed == 0 && MPI_Wtime() - begin < 0.5;) {
    check_mpi(MPI_Test(&send, &completed, MPI_STATUS_IGNORE));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  const bool all = all_of_ranks(comm, completed != 0);  // all ranks stop at the same size
  check_mpi(MPI_Recv(incoming.data(), count, MPI_BYTE, ring.prev(), 1, comm.handle(), MPI_STATUS_IGNORE));
  check_mpi(MPI_Wait(&send, MPI_STATUS_IGNORE));
  return all;
}

// Doubles the message until the sends do not complete alone.
inline void show_deadlock(Lesson& lesson, const Communicator& comm, std::size_t most) {
  lesson.heading("How a ring that sends first deadlocks");
  if (comm.size() == 1)
    return lesson.say("  skipped: one rank would wait for itself. A ring of one must send nothing");
  Table table({"all send first", ""});
  bool through = true;
  for (std::size_t bytes = 8; bytes <= most && through; bytes *= 2) {
    through = sends_complete_alone(bytes, comm);
    table.row({human_bytes(static_cast<Index>(bytes)),
               through ? "through" : "NOT through after 0.5 s; MPI_Send would hang"});
  }
  lesson.print("probes", table);
  lesson.check("a ring that sends first would hang at some size up to 64 MiB", !through);
}

}  // namespace ring_attention
