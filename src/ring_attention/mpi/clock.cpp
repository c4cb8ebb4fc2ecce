#include "ring_attention/mpi/clock.hpp"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <limits>

namespace ring_attention {
namespace {

constexpr int rounds = 64, tag = 0;

void send(const Communicator& comm, double value, int to) {
  check_mpi(MPI_Send(&value, 1, MPI_DOUBLE, to, tag, comm.handle()));
}

/// A wait that spins would take the core from the rank that is to answer: between two looks it gives the core away.
double receive(const Communicator& comm, int from, const auto& give_way) {
  double value = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(&value, 1, MPI_DOUBLE, from, tag, comm.handle(), &request));
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  while (done == 0) {
    give_way();
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  }
  return value;
}
double receive(const Communicator& comm, int from) {
  return receive(comm, from, [] { sched_yield(); });
}

/// On rank 0: asks `rank` for its clock.
ClockOffset ask(const Communicator& comm, int rank, double (*now)()) {
  ClockOffset best{0, std::numeric_limits<double>::infinity()};
  for (int round = 0; round < rounds; ++round) {
    const double begin = now();
    send(comm, begin, rank);
    const double theirs = receive(comm, rank), end = now();
    if (end - begin < best.round_trip) best = {(begin + end) / 2 - theirs, end - begin};
  }
  return best;
}

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ClockOffset clock_offset(const Communicator& comm, double (*now)()) {
  if (comm.rank() == 0) {
    for (int rank = 1; rank < comm.size(); ++rank) {
      const ClockOffset offset = ask(comm, rank, now);
      send(comm, offset.seconds, rank);
      send(comm, offset.round_trip, rank);
    }
    return {};
  }
  (void)receive(comm, 0, [] { usleep(200); });  // rank 0 asks other ranks first
  send(comm, now(), 0);
  for (int round = 1; round < rounds; ++round) {
    (void)receive(comm, 0);
    send(comm, now(), 0);
  }
  const double seconds = receive(comm, 0);
  return {seconds, receive(comm, 0)};
}

}  // namespace ring_attention
