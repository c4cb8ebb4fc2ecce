/// \file
/// Which ranks share a machine.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// The index of this rank among the ranks of its machine, their number, and the rank of the first of them in the
/// communicator.
struct HostGroup {
  int rank, size, first;
};
/// Collective. Ranks that MPI lets share memory share a machine. MPICH 5 over UCX lets no ranks share memory (MPICH's issue
/// 7814): where each rank is alone in this sense, those with the same processor name share a machine.
[[nodiscard]] HostGroup host_group(const Communicator& comm);
/// The machine of a rank, from the name of every rank's machine.
[[nodiscard]] HostGroup host_group(int rank, const std::vector<std::string>& names);
/// How many of these ranks share this rank's machine, itself included. Collective.
[[nodiscard]] inline int ranks_on_this_host(const Communicator& comm) { return host_group(comm).size; }

}  // namespace ring_attention
