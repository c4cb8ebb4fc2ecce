// Lesson 04: the numbers by which the judge of its exercise knows a mistake. with_mistakes.awk puts this into the namespace
// of the idea and of each mistake.

/// Each rank has one state; the numbers are those of all ranks. Collective.
inline NumbersOf numbers(const Communicator& all_ranks) {
  const Communicator comm(all_ranks.handle());  // in which no wrong chain has left a message
  const int rank = comm.rank();
  const Chained result = chain({static_cast<float>(rank * 7 % 5), 1 + 0.5F * static_cast<float>(rank)}, comm);
  const float own[]{result.passed.m, result.passed.l, result.whole.m, result.whole.l};
  std::vector<float> all(4 * static_cast<std::size_t>(comm.size()));
  check_mpi(MPI_Allgather(own, 4, MPI_FLOAT, all.data(), 4, MPI_FLOAT, comm.handle()));
  return {{"chain", {all.begin(), all.end()}}};
}
