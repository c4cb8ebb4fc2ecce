#include "ring_attention/mpi/clock.hpp"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <vector>

#include "ring_attention/mpi/collectives.hpp"

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

void sleep_briefly() { usleep(200); }

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

/// On another rank: answers rank 0.
void answer(const Communicator& comm, double (*now)()) {
  (void)receive(comm, 0, sleep_briefly);  // rank 0 asks other ranks first
  send(comm, now(), 0);
  for (int round = 1; round < rounds; ++round) {
    (void)receive(comm, 0);
    send(comm, now(), 0);
  }
}

void send(const Communicator& comm, const ClockOffset& offset, int to) {
  send(comm, offset.seconds, to);
  send(comm, offset.round_trip, to);
}
ClockOffset receive_offset(const Communicator& comm, int from) {
  const double seconds = receive(comm, from, sleep_briefly);
  return {seconds, receive(comm, from)};
}

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ClockOffset clock_offset(const Communicator& comm, int owner, double (*now)()) {
  const std::vector<int> owners = all_gather(comm, owner);
  ClockOffset offset;
  if (comm.rank() == 0) {
    for (int rank = 1; rank < comm.size(); ++rank)
      if (owners[static_cast<std::size_t>(rank)] == rank) send(comm, ask(comm, rank, now), rank);
  } else {
    if (owner == comm.rank()) answer(comm, now);
    offset = receive_offset(comm, owner == comm.rank() ? 0 : owner);
  }
  for (int rank = 0; rank < comm.size(); ++rank)
    if (rank != comm.rank() && owners[static_cast<std::size_t>(rank)] == comm.rank())
      send(comm, offset, rank);
  return offset;
}

}  // namespace ring_attention
