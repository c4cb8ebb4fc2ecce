/// \file
/// Lesson 04, the idea: (m, l) pass down a chain of ranks and come back by broadcast.
#pragma once

#include "ring_attention/attention/softmax.hpp"  // lesson 02: SoftmaxState {m, l}, merge
#include "ring_attention/mpi/communicator.hpp"   // Communicator, check_mpi

namespace ring_attention::lesson {

using State = SoftmaxState<float>;  // m = max x, l = sum e^{x - m}
static_assert(sizeof(State) == 2 * sizeof(float), "a message is two floats: m, l");

/// What a mutant replaces.
struct Choices {
  State start{};  // (-inf, 0): no score yet
  State (*update)(const State&, const State&) = merge<float>;
  bool broadcast = true;
};

struct Chained {
  State passed;  // covers the scores of ranks 0 .. r
  State whole;   // covers the whole row
};

/// Each rank holds some scores of one row. Two numbers travel; the scores stay.
/// \param local  the state of this rank's scores
inline Chained chain(const State& local, const Communicator& comm, const Choices& choices = {}) {
  const int rank = comm.rank(), last = comm.size() - 1;

  State state = choices.start;
  // Exercise: `state` becomes that of the scores of ranks 0 .. rank, and goes to the next rank. Three
  // statements: receive it from the rank before (rank 0 does not), merge `local` into it with
  // choices.update(state, local), send it to the next rank (rank `last` does not). A message is 2 of MPI_FLOAT
  // with tag 0.
  still_empty("chain");

  Chained result{state, state};
  // Exercise: result.whole becomes that of the last rank, on all ranks: MPI_Bcast.
  still_empty("broadcast");
  return result;
}

}  // namespace ring_attention::lesson
