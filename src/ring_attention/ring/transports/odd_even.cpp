#include "ring_attention/ring/transports/odd_even.hpp"

#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention {
void OddEvenTransport::finish() {
  const double begin = MPI_Wtime();
  const Exchange& exchange = pending_.finish();
  if (comm_.rank() % 2 == 0) {
    send(exchange.send);
    receive(exchange.receive);
  } else {
    receive(exchange.receive);
    send(exchange.send);
  }
  check_mpi(MPI_Barrier(comm_.handle()));
  statistics_.exposed_seconds += MPI_Wtime() - begin;
}

void OddEvenTransport::send(std::span<const std::byte> bytes) {
  check_mpi(
      MPI_Send_c(bytes.data(), message_length(bytes), MPI_BYTE, ring().next(), channel_, comm_.handle()));
  count_sent(statistics_, bytes);
}

void OddEvenTransport::receive(std::span<std::byte> bytes) {
  MPI_Status status;
  check_mpi(MPI_Recv_c(bytes.data(), message_length(bytes), MPI_BYTE, ring().prev(), channel_, comm_.handle(),
                       &status));
  check_received(statistics_, status, bytes, ring().prev());
}

}  // namespace ring_attention
