// The fixture of the tests of a ring over MPI.
#pragma once

#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "support/mpi_run.hpp"

namespace ring_attention::test {

/// \tparam Link  the transport
template <class Link>
class MpiRings : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
  Ring place{comm.rank(), comm.size()};
  Team team{.rings = comm.size()};
  MpiLinks links{
      comm, team.grid(place.rank).ulysses, team.grid(place.rank).ring,
      std::is_same_v<Link, OverlappedTransport> ? TransportKind::overlapped : TransportKind::odd_even};

  /// A forward, or a forward and a backward.
  template <class T>
  void expect_a_right_ring(const Problem<T>& problem) {
    expect_the_run_of_threads<T>(comm, links, problem, team);
    if (place.size > 1) return;
    const auto alone = attention_forward<T>(problem.q, problem.k, problem.v, problem.what.scoring);
    EXPECT_TRUE(same_bits(run(problem, team).attended, alone));
  }
  template <class T>
  void expect_a_right_ring(const GradientProblem<T>& problem) {
    expect_the_run_of_threads<T>(comm, links, problem, team);
    if (place.size == 1) {
      EXPECT_TRUE(same_bits(run(problem, team).gradients, single_device(problem).gradients));
    }
  }
};

using MpiTransports = testing::Types<OddEvenTransport, OverlappedTransport>;

}  // namespace ring_attention::test
