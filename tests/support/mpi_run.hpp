// One rank a process of MPI: bit for bit the ranks that are threads, which agree with the reference.
#pragma once

#include <string_view>

#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "support/run.hpp"

namespace ring_attention::test {

/// A number that the bits of a rank's results decide: for ranks that compare them.
template <class T>
std::size_t hash_of(const Whole<T>& all) {
  std::size_t hash = 0;
  const auto add = [&](const auto& array) {
    const std::string_view bytes(reinterpret_cast<const char*>(array.data()), array.bytes());
    hash = 31 * hash + std::hash<std::string_view>{}(bytes);
  };
  const auto& [attended, g] = all;
  for (const Tensor<T>* array : {&attended.out, &attended.lse, &g.q, &g.k, &g.v, &g.bias}) add(*array);
  each_number([&](const char*, auto numbers) { add(as_tensor(numbers)); }, g);
  return hash;
}

template <class T>
Index messages_of(const RankRun<T>& run) {
  Index sum = 0;
  for (const auto* statistics : {&run.forward_kv, &run.kv, &run.gradient, &run.forward_pieces, &run.pieces})
    sum += statistics->messages_sent;
  return sum;
}

/// This rank of a team of all ranks of `comm`: results, messages and memory. Rank 0 runs the threads, because the ranks of a
/// test share cores.
/// \param problem  a Problem or a GradientProblem
template <class T>
void expect_the_run_of_threads(const Communicator& comm, Links& links, const auto& problem,
                               const Team& team) {
  const Task<T> task(problem);
  const Case& what = task.forward.what;
  SCOPED_TRACE(to_string(team) + ": " + to_string(what));
  const RankRun<T> got = run_rank(task, team, CpuDevice<T>(), links, comm.rank());
  EXPECT_TRUE(sent_what_it_should(got, what, team, comm.rank()));
  EXPECT_GE(got.forward_kv.exposed_seconds, 0);
  const auto hashes = all_gather(comm, hash_of<T>(got));
  const auto forward_peaks = all_gather(comm, got.forward_peak), peaks = all_gather(comm, got.peak),
             messages = all_gather(comm, messages_of(got));
  if (comm.rank() > 0) return;
  const TeamRun<T> threads = run(problem, team);
  EXPECT_TRUE(agrees(threads, problem));
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_EQ(hashes[at], hash_of<T>(threads[rank])) << "the bits of rank " << rank;
    EXPECT_EQ(forward_peaks[at], threads[rank].forward_peak) << "rank " << rank;
    EXPECT_EQ(peaks[at], threads[rank].peak) << "rank " << rank;
    EXPECT_EQ(messages[at], messages_of(threads[rank])) << "rank " << rank;
  }
}

/// Over links of their own.
template <class T, class Over = MpiLinks>
void expect_the_run_of_threads(const Communicator& comm, const auto& problem, const Team& team) {
  const RankGrid grid = team.grid(comm.rank());
  Over links(comm, grid.ulysses, grid.ring);
  expect_the_run_of_threads<T>(comm, links, problem, team);
}

}  // namespace ring_attention::test
