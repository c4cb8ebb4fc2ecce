// Peers that are the ranks of MPI.
#pragma once

#include <memory>
#include <span>

#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/transports/mpi_message.hpp"
#include "ring_attention/ring/transports/peers.hpp"

namespace ring_attention::test {

class MpiPeers : public Peers {
 public:
  [[nodiscard]] int rank() const override { return comm_.rank(); }
  [[nodiscard]] int size() const override { return comm_.size(); }
  [[nodiscard]] std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) override {
    auto message = std::make_unique<Pending>();
    check_mpi(
        MPI_Isend_c(bytes.data(), std::ssize(bytes), MPI_BYTE, to, tag, comm_.handle(), &message->request));
    return message;
  }
  [[nodiscard]] std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) override {
    auto message = std::make_unique<Pending>();
    check_mpi(
        MPI_Irecv_c(bytes.data(), std::ssize(bytes), MPI_BYTE, from, tag, comm_.handle(), &message->request));
    return message;
  }
  void unite(std::span<std::byte> bytes) override {
    check_mpi(
        MPI_Allreduce_c(MPI_IN_PLACE, bytes.data(), std::ssize(bytes), MPI_BYTE, MPI_BOR, comm_.handle()));
  }

 private:
  struct Pending : Message {
    void wait() override {
      int done = 0;
      for (int calls = 0; done == 0; back_off(++calls))
        check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    }
    MPI_Request request = MPI_REQUEST_NULL;
  };
  Communicator comm_{MPI_COMM_WORLD};
};

}  // namespace ring_attention::test
