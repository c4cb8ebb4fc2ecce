#include "ring_attention/mpi/clock.hpp"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <limits>

#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

constexpr int rounds = 64, tag = 0;

class MpiMessages : public ClockMessages {
 public:
  explicit MpiMessages(const Communicator& comm) : comm_(comm) {}

  void send(double value, int to) override {
    check_mpi(MPI_Send(&value, 1, MPI_DOUBLE, to, tag, comm_.handle()));
  }
  /// A wait that spins would take the core from the rank that is to answer: between two looks it gives the core away.
  double receive(int from, bool soon) override {
    double value = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(&value, 1, MPI_DOUBLE, from, tag, comm_.handle(), &request));
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    while (done == 0) {
      soon ? static_cast<void>(sched_yield()) : static_cast<void>(usleep(200));
      check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    }
    return value;
  }

 private:
  const Communicator& comm_;
};

/// On rank 0: asks `rank` for its clock.
ClockOffset ask(ClockMessages& messages, int rank, double (*now)()) {
  ClockOffset best{0, std::numeric_limits<double>::infinity()};
  for (int round = 0; round < rounds; ++round) {
    const double begin = now();
    messages.send(begin, rank);
    const double theirs = messages.receive(rank, true), end = now();
    if (end - begin < best.round_trip) best = {(begin + end) / 2 - theirs, end - begin};
  }
  return best;
}

/// On another rank: answers rank 0.
void answer(ClockMessages& messages, double (*now)()) {
  for (int round = 0; round < rounds; ++round) {
    (void)messages.receive(0, round > 0);  // rank 0 asks other ranks first
    messages.send(now(), 0);
  }
}

void send(ClockMessages& messages, const ClockOffset& offset, int to) {
  messages.send(offset.seconds, to);
  messages.send(offset.round_trip, to);
}
ClockOffset receive_offset(ClockMessages& messages, int from) {
  const double seconds = messages.receive(from, false);
  return {seconds, messages.receive(from, true)};
}

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ClockOffset clock_offset(ClockMessages& messages, int rank, const std::vector<int>& owners, double (*now)()) {
  const int size = static_cast<int>(owners.size()), owner = owners[static_cast<std::size_t>(rank)];
  ClockOffset offset;
  if (rank == 0) {
    for (int other = 1; other < size; ++other)
      if (owners[static_cast<std::size_t>(other)] == other) send(messages, ask(messages, other, now), other);
  } else {
    if (owner == rank) answer(messages, now);
    offset = receive_offset(messages, owner == rank ? 0 : owner);
  }
  for (int other = 0; other < size; ++other)
    if (other != rank && owners[static_cast<std::size_t>(other)] == rank) send(messages, offset, other);
  return offset;
}

ClockOffset clock_offset(const Communicator& comm, int owner, double (*now)()) {
  MpiMessages messages(comm);
  return clock_offset(messages, comm.rank(), all_gather(comm, owner), now);
}

}  // namespace ring_attention
