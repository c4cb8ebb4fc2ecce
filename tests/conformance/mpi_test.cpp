// The named cases over MPI, one rank a process: results, messages and memory of the ranks that are threads.

#include "conformance/cases.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "support/mpi_run.hpp"

namespace ring_attention::test {
namespace {

/// Every way in which `ranks` ranks can share an attention.
std::vector<Team> teams_of(int ranks) {
  std::vector<Team> all{{.rings = ranks, .all_gathers_kv = true}};
  for (int ulysses = 1; ulysses <= ranks; ++ulysses)
    if (ranks % ulysses == 0) all.push_back({ulysses, ranks / ulysses});
  return all;
}

// Ranks that share cores mostly wait for each other: some cases for each team, fewer on many ranks. Transports and types are
// in turn.
TEST(MpiConformance, EveryTeamWithSomeCases) {
  const Communicator comm(MPI_COMM_WORLD);
  const std::size_t every = comm.size() <= 4 ? 9 : 19;
  std::size_t turn = 0;
  for (const Team& team : teams_of(comm.size()))
    for (const NamedCase& named : named_cases()) {
      const Case& what = named.what;
      if (!can_share_heads(what.q().heads, what.kv_heads, team.ulysses) || ++turn % every != 0) continue;
      SCOPED_TRACE(named.name);
      const auto run = [&]<class T>(const GradientProblem<T>& problem) {
        if (turn / every % 2 == 0)
          expect_the_run_of_threads<T>(comm, problem, team);
        else
          expect_the_run_of_threads<T, MpiLinksOver<OddEvenTransport>>(comm, problem, team);
      };
      if (turn / every % 3 == 0)
        run(make_gradient_problem<double>(what));
      else
        run(make_gradient_problem<float>(what));
    }
}

}  // namespace
}  // namespace ring_attention::test
