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
inline void ring(Engine<float>& engine, Tensor<float>& current, Tensor<float>& incoming, const Shape& kv,
                 const Placement& placement, const Communicator& comm) {
  const Ring ring{comm.rank(), comm.size()};
  const auto shape = [&](int owner) { return kv.with_seq(placement.tokens(owner)); };
  const auto length = [&](int owner) { return static_cast<int>(2 * shape(owner).size()); };
  for (int step = 0; step < ring.steps(); ++step) {
    const int owner = ring.owner(step), next_owner = ring.owner(step + 1);

    const View<const float> k(current.data(), shape(owner)), v(current.data() + k.size(), shape(owner));
    engine.accumulate({k, v, placement.ranges(owner)});
    if (step + 1 == ring.steps()) break;  // the last parcel has been used: it does not travel on

    // If all ranks sent first, each could wait for a receive that no rank has posted.
    if (ring.rank % 2 == 0) {
      check_mpi(MPI_Send(current.data(), length(owner), MPI_FLOAT, ring.next(), 0, comm.handle()));
      check_mpi(MPI_Recv(incoming.data(), length(next_owner), MPI_FLOAT, ring.prev(), 0, comm.handle(),
                         MPI_STATUS_IGNORE));
    } else {
      check_mpi(MPI_Recv(incoming.data(), length(next_owner), MPI_FLOAT, ring.prev(), 0, comm.handle(),
                         MPI_STATUS_IGNORE));
      check_mpi(MPI_Send(current.data(), length(owner), MPI_FLOAT, ring.next(), 0, comm.handle()));
    }
    check_mpi(MPI_Barrier(comm.handle()));
    std::swap(current, incoming);  // the parcel that arrived is the next one to use and to send
  }
}

}  // namespace ring_attention::lesson
