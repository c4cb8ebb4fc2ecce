#include "ring_attention/mpi/host.hpp"

#include <algorithm>
#include <array>

#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

HostGroup group_by_memory(const Communicator& comm) {
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(comm.handle(), MPI_COMM_TYPE_SHARED, comm.rank(), MPI_INFO_NULL, &host));
  HostGroup group{.rank = 0, .size = 0, .first = comm.rank()};
  check_mpi(MPI_Comm_rank(host, &group.rank));
  check_mpi(MPI_Comm_size(host, &group.size));
  check_mpi(MPI_Bcast(&group.first, 1, MPI_INT, 0, host));
  check_mpi(MPI_Comm_free(&host));
  return group;
}

HostGroup group_by_name(const Communicator& comm) {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check_mpi(MPI_Get_processor_name(name.data(), &length));
  std::fill(name.begin() + length, name.end(), '\0');
  std::vector<std::string> names;
  for (const auto& one : all_gather(comm, name)) names.emplace_back(one.begin(), one.end());
  return host_group(comm.rank(), names);
}

}  // namespace

HostGroup host_group(int rank, const std::vector<std::string>& names) {
  const auto own = names.begin() + rank;
  return {.rank = static_cast<int>(std::count(names.begin(), own, *own)),
          .size = static_cast<int>(std::ranges::count(names, *own)),
          .first = static_cast<int>(std::ranges::find(names, *own) - names.begin())};
}

HostGroup host_group(const Communicator& comm) {
  const HostGroup group = group_by_memory(comm);
  return all_of_ranks(comm, group.size == 1) ? group_by_name(comm) : group;
}

}  // namespace ring_attention
