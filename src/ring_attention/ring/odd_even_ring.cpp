#include "ring_attention/ring/odd_even_ring.hpp"

#include <chrono>

namespace ring_attention {
namespace {

constexpr int parcel_tag = 1;

}  // namespace

void OddEvenRing::finish() {
  const auto begin = std::chrono::steady_clock::now();
  const Exchange& exchange = pending_.finish();
  if (comm_.rank() % 2 == 0) {
    send(exchange.send);
    receive(exchange.receive);
  } else {
    receive(exchange.receive);
    send(exchange.send);
  }
  check_mpi(MPI_Barrier(comm_.handle()));
  statistics_.exposed_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void OddEvenRing::send(std::span<const std::byte> bytes) {
  const auto length = static_cast<MPI_Count>(bytes.size());
  check_mpi(MPI_Send_c(bytes.data(), length, MPI_BYTE, ring().next(), parcel_tag, comm_.handle()));
  ++statistics_.messages_sent;
  statistics_.bytes_sent += static_cast<Index>(length);
}

void OddEvenRing::receive(std::span<std::byte> bytes) {
  MPI_Status status;
  const auto length = static_cast<MPI_Count>(bytes.size());
  check_mpi(MPI_Recv_c(bytes.data(), length, MPI_BYTE, ring().prev(), parcel_tag, comm_.handle(), &status));
  MPI_Count received = 0;
  check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &received));
  require(received == length, "ring: rank " + std::to_string(ring().prev()) + " sent " +
                                  std::to_string(received) + " bytes where " + std::to_string(length) +
                                  " were due");
  statistics_.bytes_received += static_cast<Index>(received);
}

}  // namespace ring_attention
