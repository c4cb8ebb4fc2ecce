#include "ring_attention/ring/transports/odd_even.hpp"

#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention {

void OddEvenTransport::finish() {
  const double begin = MPI_Wtime();
  const Hop& hop = pending_.finish();
  const auto sent = hop.send;
  const auto received = hop.receive;
  const Ring ring = this->ring();
  const auto send = [&] {
    if (sent.empty()) return;
    check_mpi(MPI_Send_c(sent.data(), std::ssize(sent), MPI_BYTE, ring.next(), channel_, comm_.handle()));
    count_sent(statistics_, sent);
  };
  if (ring.rank % 2 == 0) send();
  if (!received.empty()) {
    MPI_Status status;
    check_mpi(MPI_Recv_c(received.data(), std::ssize(received), MPI_BYTE, ring.prev(), channel_,
                         comm_.handle(), &status));
    check_received(statistics_, status, received, ring.prev());
  }
  if (ring.rank % 2 != 0) send();
  check_mpi(MPI_Barrier(comm_.handle()));
  statistics_.exposed_seconds += MPI_Wtime() - begin;
}

}  // namespace ring_attention
