// Lesson 06, a mutant: the rank computes with the parcel that is still arriving.

#include <unistd.h>

#include <utility>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

/// Feeds the K,V of every rank to `engine`.
///
/// At step t rank r holds the K,V of rank (r - t) mod N. They travel on while it merges them: N steps, N - 1 hops.
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

    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    if (step + 1 < steps) {  // the receive first: a message that finds it posted needs no copy on the way
      check_mpi(MPI_Irecv(incoming.data(), length(next_owner), MPI_FLOAT, ring.prev(), 0, comm.handle(),
                          &requests[0]));
      check_mpi(
          MPI_Isend(current.data(), length(owner), MPI_FLOAT, ring.next(), 0, comm.handle(), &requests[1]));
    }
    int done = 0;
    const auto progress = [&] { check_mpi(MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE)); };

    if (step + 1 < steps) std::swap(current, incoming);
    const View<const float> k(current.data(), shape(owner)), v(current.data() + k.size(), shape(owner));
    engine.accumulate({k, v, placement.ranges(owner)}, progress);  // a message may move only inside MPI calls
    if (step + 1 == steps) break;  // the last parcel has been used: it does not travel on

    progress();
    while (done == 0) {
      usleep(20);  // a wait that spins takes the core from the rank that it waits for
      progress();
    }
  }
}

}  // namespace ring_attention::lesson
