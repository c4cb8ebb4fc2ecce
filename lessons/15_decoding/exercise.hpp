// Lesson 15, the idea: the keys stay on their ranks, and the state of one query travels.
#pragma once

#include <span>
#include <vector>

#include "ring_attention/attention/softmax.hpp"                    // lesson 02: SoftmaxState, merge, rescale
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"  // lesson 10: an all-to-all
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

/// The state of a query over no key, as one row of numbers: o, then m, then l.
inline std::vector<double> no_key(Index dim) {
  std::vector<double> state(static_cast<std::size_t>(dim) + 2);
  state[static_cast<std::size_t>(dim)] = negative_infinity<double>;
  return state;
}

/// The rank that keeps K and V of the token at a position: all ranks grow at the same rate, and nothing moves.
inline int keeper(Index position, int ranks) { return Axis{1, ranks}.index(static_cast<int>(position)); }

/// The state over the keys of both. It joins two keys, two pieces of a cache and two ranks.
inline void merge(std::span<double> state, std::span<const double> other) {
  const std::size_t dim = state.size() - 2;
  const SoftmaxState<double> a{state[dim], state[dim + 1]}, b{other[dim], other[dim + 1]};
  // Exercise: ring_attention::merge(a, b) is the (m, l) of both. Bring both o to its maximum, with rescale(from, to),
  // and add them. Then store m and l behind o.
  still_empty("merge");
}

/// One more key, whose score is s: its state is (v, s, 1).
inline void attend(std::span<double> state, double s, std::span<const double> v) {
  std::vector<double> key(v.begin(), v.end());
  // Exercise: what is m, and what is l, of a single key? Put them behind v, and merge the key's state.
  still_empty("attend");
}

/// The states over the keys of all ranks, on every rank.
/// \param states  over this rank's keys: a row of dim + 2 numbers for each head
///
/// Each rank gets the rows of all ranks, and merges them in the order of the ranks: the same bits everywhere.
inline std::vector<double> over_all_ranks(MpiAllToAll& link, const std::vector<double>& states, Index dim) {
  const auto ranks = static_cast<std::size_t>(link.size()), row = static_cast<std::size_t>(dim) + 2;
  std::vector<double> all(ranks * states.size());
  Pieces pieces;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    pieces.send.push_back(std::as_bytes(std::span(states)));
    pieces.receive.push_back(
        std::as_writable_bytes(std::span(all).subspan(rank * states.size(), states.size())));
  }
  link.all_to_all(pieces);

  // Exercise: `all` has the states of rank 0, then those of rank 1, and so on; a state is `row` numbers. Merge the
  // states of a head, in the order of the ranks, and return one state for each head.
  still_empty("over all ranks");
}

}  // namespace ring_attention::lesson
