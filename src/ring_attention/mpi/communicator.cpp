#include "ring_attention/mpi/communicator.hpp"

#include <array>
#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

void check_mpi(int code, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(located("MPI: " + std::string(text.data(), static_cast<std::size_t>(length)), where));
}

Communicator::Communicator(MPI_Comm from) {
  check_mpi(MPI_Comm_dup(from, &comm_));
  initialise();
}

Communicator::Communicator(const Communicator& from, int colour) {
  check_mpi(MPI_Comm_split(from.handle(), colour, from.rank(), &comm_));
  initialise();
}

void Communicator::initialise() {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
}

Communicator::~Communicator() {
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
}

}  // namespace ring_attention
