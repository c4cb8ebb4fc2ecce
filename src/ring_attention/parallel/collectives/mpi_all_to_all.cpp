#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"

#include <chrono>

#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention {
namespace {

/// Where pieces are, for MPI: addresses relative to MPI_BOTTOM, because they are not in one array.
struct Addresses {
  std::vector<MPI_Count> lengths;
  std::vector<MPI_Aint> begins;

  template <class Spans>
  explicit Addresses(const Spans& pieces) {
    for (const auto& piece : pieces) {
      MPI_Aint begin = 0;
      if (!piece.empty()) check_mpi(MPI_Get_address(piece.data(), &begin));
      begins.push_back(begin);
      lengths.push_back(static_cast<MPI_Count>(piece.size()));
    }
  }
};

}  // namespace

MpiAllToAll::MpiAllToAll(const Communicator& world, const Axis& axis) : comm_(&world) {
  if (axis.size < world.size()) comm_ = &own_.emplace(world, axis.group(world.rank()));
}

void MpiAllToAll::all_to_all(const Pieces& pieces) {
  require_pieces(pieces, rank(), size());
  const auto start = std::chrono::steady_clock::now();
  const Addresses send(pieces.send), receive(pieces.receive);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ialltoallv_c(MPI_BOTTOM, send.lengths.data(), send.begins.data(), MPI_BYTE, MPI_BOTTOM,
                             receive.lengths.data(), receive.begins.data(), MPI_BYTE, comm_->handle(),
                             &request));
  int done = 0;
  for (int calls = 0; done == 0; ++calls) {
    back_off(calls);
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  count_exchange(statistics_, pieces, rank(), seconds.count());
}

}  // namespace ring_attention
