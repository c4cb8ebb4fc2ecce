#include "ring_attention/mpi/host.hpp"

#include <algorithm>
#include <array>

namespace ring_attention {
namespace {

HostPlace place_by_memory(const Communicator& comm) {
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm.handle(), MPI_COMM_TYPE_SHARED, comm.rank(), MPI_INFO_NULL, &host));
  HostPlace place{.rank = 0, .size = 0, .first = comm.rank()};
  check_mpi(MPI_Comm_rank(host, &place.rank));
  check_mpi(MPI_Comm_size(host, &place.size));
  check_mpi(MPI_Bcast(&place.first, 1, MPI_INT, 0, host));
  check_mpi(MPI_Comm_free(&host));
  return place;
}

HostPlace place_by_name(const Communicator& comm) {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length));
  std::fill(name.begin() + length, name.end(), '\0');
  const auto names = all_gather(comm, name);
  const auto own = names.begin() + comm.rank();
  return {.rank = static_cast<int>(std::count(names.begin(), own, name)),
          .size = static_cast<int>(std::ranges::count(names, name)),
          .first = static_cast<int>(std::ranges::find(names, name) - names.begin())};
}

}  // namespace

HostPlace place_on_host(const Communicator& comm) {
  const HostPlace place = place_by_memory(comm);
  return all_of_ranks(comm, place.size == 1) ? place_by_name(comm) : place;
}

}  // namespace ring_attention
