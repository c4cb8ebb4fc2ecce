#include "ring_attention/ring/transports/odd_even.hpp"

#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention {

void OddEvenTransport::finish() {
  const double begin = MPI_Wtime();
  const Exchange hop = pending_.finish();
  const Ring ring = this->ring();
  const auto send = [&] {
    if (hop.send.empty()) return;
    check_mpi(
        MPI_Send_c(hop.send.data(), std::ssize(hop.send), MPI_BYTE, ring.next(), channel_, comm_.handle()));
    count_sent(statistics_, hop.send);
  };
  if (ring.rank % 2 == 0) send();
  if (!hop.receive.empty()) {
    MPI_Status status;
    check_mpi(MPI_Recv_c(hop.receive.data(), std::ssize(hop.receive), MPI_BYTE, ring.prev(), channel_,
                         comm_.handle(), &status));
    check_received(statistics_, status, hop.receive, ring.prev());
  }
  if (ring.rank % 2 != 0) send();
  check_mpi(MPI_Barrier(comm_.handle()));
  statistics_.exposed_seconds += MPI_Wtime() - begin;
}

}  // namespace ring_attention
