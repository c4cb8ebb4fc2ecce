// The clock of one machine, which its ranks share; and clocks that differ.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "io/trace_file.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/mpi/host.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"

namespace {

bool no_memory_is_shared = false;

}  // namespace

/// As MPICH 5 over UCX splits, where a test asks for it.
extern "C" int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* part) {
  return PMPI_Comm_split_type(no_memory_is_shared ? MPI_COMM_SELF : comm, type, key, info, part);
}

namespace ring_attention::test {
namespace {

TEST(Clock, RanksOfOneMachineShareIt) {
  const Communicator comm(MPI_COMM_WORLD);
  const HostGroup group = host_group(comm);
  EXPECT_EQ(group.first, 0);  // this test runs on one machine
  MpiAllToAll all(comm);
  EXPECT_EQ(machines_of(all), std::vector<int>(static_cast<std::size_t>(comm.size())));
  const ClockOffset offset = clock_offset(all, machines_of(all));
  EXPECT_EQ(offset.seconds, 0);
  EXPECT_EQ(offset.round_trip, 0);
}

TEST(Clock, RanksThatShareNoMemoryShareTheMachineOfTheirName) {
  const Communicator comm(MPI_COMM_WORLD);
  no_memory_is_shared = true;
  const HostGroup group = host_group(comm);
  no_memory_is_shared = false;
  EXPECT_EQ(group.rank, comm.rank());
  EXPECT_EQ(group.size, comm.size());
  EXPECT_EQ(group.first, 0);
  const HostGroup third = host_group(4, {"a", "b", "a", "b", "b"});
  EXPECT_EQ(third.rank, 2);
  EXPECT_EQ(third.size, 3);
  EXPECT_EQ(third.first, 1);
}

/// Pairs of ranks have a machine: 0 and 1, 2 and 3.
int machine_of(int rank) { return rank / 2; }

/// All rounds of three readings but one of 64 seem to take 100 s longer: the fastest has to count.
double clock_of_its_machine() {
  static int readings = 0;
  const bool is_late = readings % 3 == 2 && readings / 3 % 64 != 40;
  ++readings;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return clock_seconds() + 1000 * machine_of(rank) + (is_late ? 100 : 0);
}

ClockOffset offset_of_its_machine(const Communicator& comm) {
  std::vector<int> machines;
  for (int rank = 0; rank < comm.size(); ++rank) machines.push_back(2 * machine_of(rank));
  MpiAllToAll all(comm);
  return clock_offset(all, machines, clock_of_its_machine);
}

TEST(Clock, AnOffsetIsAddedToTheOwnClock) {
  const Communicator comm(MPI_COMM_WORLD);
  const int machine = machine_of(comm.rank());
  const ClockOffset offset = offset_of_its_machine(comm);
  if (machine == 0) {
    EXPECT_EQ(offset.round_trip, 0);
  } else {
    EXPECT_GT(offset.round_trip, 0);
    EXPECT_LT(offset.round_trip, 10);
  }
  EXPECT_LE(std::abs(offset.seconds + 1000 * machine), offset.round_trip / 2 + 1e-6);
}

TEST(Clock, RanksOfAnotherMachineHaveOneOffset) {
  const Communicator comm(MPI_COMM_WORLD);
  const ClockOffset offset = offset_of_its_machine(comm);
  const std::vector<ClockOffset> all = all_gather(comm, offset);
  for (std::size_t rank = 1; rank < all.size(); rank += 2) {
    EXPECT_EQ(all[rank].seconds, all[rank - 1].seconds);
    EXPECT_EQ(all[rank].round_trip, all[rank - 1].round_trip);
  }
}

TEST(Clock, NeverGoesBack) {
  const double first = clock_seconds();
  EXPECT_LE(first, clock_seconds());
}

}  // namespace
}  // namespace ring_attention::test
