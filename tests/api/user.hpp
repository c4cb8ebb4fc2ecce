// A rank of a user's program.
#pragma once

#include <optional>
#include <utility>

#include "ring_attention/partitions.hpp"
#include "ring_attention/ring_attention.hpp"
#include "support/run.hpp"

namespace ring_attention::test {

inline Ring place_in(MPI_Comm comm) {
  Ring place;
  MPI_Comm_rank(comm, &place.rank);
  MPI_Comm_size(comm, &place.size);
  return place;
}

/// The arrays of one rank of a problem, and what the two calls return on it.
template <class T>
struct User {
  explicit User(const GradientProblem<T>& whole_problem, const std::string& partition = "ring",
                int ulysses = 1)
      : User(whole_problem, MPI_COMM_WORLD, partition, ulysses) {}
  User(const GradientProblem<T>& whole_problem, MPI_Comm communicator, const std::string& partition = "ring",
       int ulysses = 1)
      : User(whole_problem, communicator, {whole_problem.what().kind, whole_problem.what().kind}, partition,
             ulysses) {}
  /// \param kinds  of the placements of queries and keys
  User(const GradientProblem<T>& whole_problem, MPI_Comm communicator,
       std::pair<PlacementKind, PlacementKind> kinds, const std::string& partition = "ring", int ulysses = 1)
      : problem(whole_problem),
        comm(communicator),
        place(place_in(comm)),
        grid(division_named(partition, ulysses).grid(place.rank, place.size)),
        placement(Placement(kinds.first, problem.what().queries, grid.ring.size),
                  Placement(kinds.second, problem.what().keys, grid.ring.size)) {
    attention = {mpi(comm), cores(), division_named(partition, ulysses)};
    if (problem.what().bias()) bias = rows_of(problem.forward.bias, rows);
  }

  [[nodiscard]] AttentionResult<T> attend() const {
    return forward(attention, q, k, v, placement, scoring, bias);
  }
  [[nodiscard]] Gradients<T> differentiate(const AttentionResult<T>& result) const {
    return backward(attention, q, k, v, result, grad_out, placement, scoring, bias);
  }
  /// Does the result agree with the reference at this rank's queries?
  [[nodiscard]] testing::AssertionResult agrees(const AttentionResult<T>& result) const {
    return test::agrees(result, problem.forward, rows);
  }

  const GradientProblem<T>& problem;
  MPI_Comm comm;
  Ring place;
  RankGrid grid;
  Placements placement;
  TokenRanges rows = grid.slice(placement.queries), columns = grid.slice(placement.keys);
  Tensor<T> q = rows_of(problem.forward.q, rows), k = rows_of(problem.forward.k, columns),
            v = rows_of(problem.forward.v, columns), grad_out = rows_of(problem.grad_out, rows);
  std::optional<Tensor<T>> bias;
  Scoring scoring = problem.what().scoring;
  Attention attention;
};

}  // namespace ring_attention::test
