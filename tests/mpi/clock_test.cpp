// The clocks of ranks of one machine, which are one clock; and clocks that differ.

#include "ring_attention/mpi/clock.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace ring_attention::test {
namespace {

TEST(Clock, OffsetOfOneMachineIsWithinHalfARoundTrip) {
  const Communicator comm(MPI_COMM_WORLD);
  const ClockOffset offset = clock_offset(comm);
  if (comm.rank() == 0) {
    EXPECT_EQ(offset.seconds, 0);
    return;
  }
  EXPECT_GT(offset.round_trip, 0);
  EXPECT_LT(offset.round_trip, 10);
  EXPECT_LE(std::abs(offset.seconds), offset.round_trip / 2);
}

double clock_of_another_machine() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return clock_seconds() + 1000 * rank;
}

TEST(Clock, AnOffsetIsAddedToTheOwnClock) {
  const Communicator comm(MPI_COMM_WORLD);
  const ClockOffset offset = clock_offset(comm, clock_of_another_machine);
  EXPECT_LE(std::abs(offset.seconds + 1000 * comm.rank()), offset.round_trip / 2 + 1e-6);
}

TEST(Clock, NeverGoesBack) {
  const double first = clock_seconds();
  EXPECT_LE(first, clock_seconds());
}

}  // namespace
}  // namespace ring_attention::test
