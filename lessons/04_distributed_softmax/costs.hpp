// Lesson 04: the state on every rank, and what the chain costs beside two all-reduces.
#pragma once

#include LESSON_IDEA

#include <array>
#include <bit>

#include "common/lesson.hpp"
#include "common/mpi_counter.hpp"

namespace ring_attention::lesson {

// The same state by two all-reduces: the maximum, then the rescaled sums. By recursive doubling each takes log2 N
// messages one after another.
inline State all_reduce(State state, const Communicator& comm) {
  const float own = state.m;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &state.m, 1, MPI_FLOAT, MPI_MAX, comm.handle()));
  state.l *= rescale(own, state.m);
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &state.l, 1, MPI_FLOAT, MPI_SUM, comm.handle()));
  return state;
}

inline void show_chain(Lesson& lesson, const Communicator& comm, Index tokens, const State& own,
                       const State& upto) {
  const std::array<double, 5> mine{static_cast<double>(tokens), own.m, own.l, upto.m, upto.l};
  Table table({"rank", "tokens", "own m", "own l", "m passed on", "l passed on"});
  const auto rows = all_gather(comm, mine);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    std::vector<std::string> cells{std::to_string(rank), format("%.0f", rows[rank][0])};
    for (std::size_t i = 1; i < mine.size(); ++i) cells.push_back(format("%.4f", rows[rank][i]));
    table.row(cells);
  }
  lesson.print("chain", table);
}

// Seconds a time, the mean of 10 on the slowest rank.
inline double measure(const Communicator& comm, const auto& body) {
  check_mpi(MPI_Barrier(comm.handle()));
  const double begin = MPI_Wtime();
  for (int i = 0; i < 10; ++i) body();
  return max_over_ranks(comm, (MPI_Wtime() - begin) / 10);
}

/// \param traffic  of this rank in one chain
inline void show_cost(Lesson& lesson, const Communicator& comm, const State& own,
                      const mpi_counter::Traffic& traffic) {
  const Index sent = sum_over_ranks(comm, traffic.hops), bytes = sum_over_ranks(comm, traffic.bytes);
  const Index hops = comm.size() - 1;
  const int depth = static_cast<int>(std::ceil(std::log2(comm.size())));
  lesson.heading("The cost");
  lesson.check("messages of 8 bytes down the chain are N - 1", sent == hops && bytes == 8 * hops,
               std::to_string(sent));
  const double chained = measure(comm, [&] { chain(own, comm); });
  const double reduced = measure(comm, [&] { all_reduce(own, comm); });
  Table table({"way", "messages one after another", "here", "measured"});
  table.row({"the chain", "N - 1 + ceil(log2 N)", std::to_string(hops + depth), human_seconds(chained)});
  if (std::has_single_bit(static_cast<unsigned>(comm.size())))
    table.row({"two all-reduces", "2 log2 N", std::to_string(2 * depth), human_seconds(reduced)});
  else
    table.row(
        {"two all-reduces", "2 (ceil(log2 N) + 1)", std::to_string(2 * (depth + 1)), human_seconds(reduced)});
  lesson.print("times", table);
}

}  // namespace ring_attention::lesson
