// Lesson 05, the idea: queries stay; keys and values travel round a ring of blocking messages.
#pragma once

#include <utility>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

/// Feeds the K,V of every rank to `engine`.
///
/// At step t rank r holds the K,V of rank (r - t) mod N. It merges them, then passes them on: N steps, N - 1 hops.
///
/// \param engine    the state (o, m, l) of this rank's queries; accumulate() merges some keys and values into it
/// \param current   a parcel: K, then V of one rank, in one message; at first those of this rank
/// \param incoming  where the next parcel arrives; both buffers are as large as the largest parcel
/// \param kv        the shape of K, and of V, of the whole sequence
/// \param steps     N, the number of ranks
inline void ring(Engine<float>& engine, Tensor<float>& current, Tensor<float>& incoming, const Shape& kv,
                 const Placement& placement, const Communicator& comm, int steps) {
  const Ring ring{comm.rank(), comm.size()};
  const auto shape = [&](int owner) { return kv.with_seq(placement.tokens(owner)); };
  const auto length = [&](int owner) { return static_cast<int>(2 * shape(owner).size()); };
  for (int step = 0; step < steps; ++step) {
    const int owner = ring.owner(step), next_owner = ring.owner(step + 1);

    // Exercise: the engine merges the parcel in `current`: engine.accumulate({k, v, ranges}). k and v are
    // views, View<const float> name(first element, shape(owner)); v follows k in memory; k.size() is the
    // number of its elements. The ranges are those of the owner's tokens, placement.ranges(owner).
    still_empty("accumulate");
    // Exercise: the hop, in an order of sends and receives that cannot deadlock; none after the last step.
    // `current` goes to ring.next(): length(owner) numbers of MPI_FLOAT. `incoming` comes from ring.prev():
    // length(next_owner) of them. In the end `current` is the parcel that arrived. The communicator is
    // comm.handle(). Call MPI_Send and MPI_Recv, which the program counts: MPI_Sendrecv is right, too, but its
    // messages are not counted.
    still_empty("exchange");
  }
}

}  // namespace ring_attention::lesson
