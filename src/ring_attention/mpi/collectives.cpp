#include "ring_attention/mpi/collectives.hpp"

#include <cmath>
#include <limits>

namespace ring_attention {
namespace {

template <class T>
T reduced(const Communicator& comm, T value, MPI_Datatype type, MPI_Op operation) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, type, operation, comm.handle()));
  return value;
}

}  // namespace

void sum_over_ranks(const Communicator& comm, std::span<double> values) {
  check_mpi(MPI_Allreduce_c(MPI_IN_PLACE, values.data(), static_cast<MPI_Count>(values.size()), MPI_DOUBLE,
                            MPI_SUM, comm.handle()));
}

void max_over_ranks(const Communicator& comm, std::span<std::uint64_t> values) {
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_UINT64_T, MPI_MAX,
                          comm.handle()));
}

void unite(const Communicator& comm, std::span<std::byte> bytes) {
  check_mpi(MPI_Allreduce_c(MPI_IN_PLACE, bytes.data(), std::ssize(bytes), MPI_BYTE, MPI_BOR, comm.handle()));
}

double max_over_ranks(const Communicator& comm, double value) {
  const bool numbers = all_of_ranks(comm, !std::isnan(value));  // MPI_MAX may drop a NaN
  const double most = reduced(comm, value, MPI_DOUBLE, MPI_MAX);
  return numbers ? most : std::numeric_limits<double>::quiet_NaN();
}

Index min_over_ranks(const Communicator& comm, Index value) {
  return reduced(comm, value, MPI_INT64_T, MPI_MIN);
}

Index sum_over_ranks(const Communicator& comm, Index value) {
  return reduced(comm, value, MPI_INT64_T, MPI_SUM);
}

bool all_of_ranks(const Communicator& comm, bool value) {
  return reduced(comm, value ? 1 : 0, MPI_INT, MPI_MIN) != 0;
}

void barrier(const Communicator& comm) { check_mpi(MPI_Barrier(comm.handle())); }

}  // namespace ring_attention
