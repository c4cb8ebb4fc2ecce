// Lesson 08, the idea: keys and values go round once more, and the gradients of each shard travel with them.
#pragma once

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

/// A parcel, K,V of one rank in one message or their gradients, and the buffer in which the next one arrives.
struct Parcel {
  Tensor<float> current, incoming;  // each as large as the largest parcel
  int tag;                          // a receive takes messages of its own tag only
  MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};  // receive, send
};

/// Feeds the K,V of every rank to `engine`, and returns the dK,dV of every rank to it.
///
/// At step t rank r holds the K,V of rank (r - t) mod N, and adds what its queries contribute to their dK,dV. A rank
/// sends dK,dV on when it has added its part. So they follow their K,V one step behind, and need a hop more.
///
/// \param engine         dQ of this rank's queries; accumulate() adds to it, and to the dK,dV that it is given
/// \param kv             this rank's K,V at first; they make N - 1 hops
/// \param gradients      zeros at first, this rank's dK,dV in the end
/// \param shape          of K, and of V, of the whole sequence
/// \param gradient_hops  of dK,dV: N, or none when N = 1; the last one returns them to their owner. The wrong rings of
///                       the program have fewer: none, or N - 1
inline void ring(BackwardEngine<float>& engine, Parcel& kv, Parcel& gradients, const Shape& shape,
                 const Placement& placement, const Communicator& comm, int gradient_hops) {
  const Ring ring{comm.rank(), comm.size()};
  const auto shard = [&](int owner) { return shape.with_seq(placement.tokens(owner)); };
  const auto length = [&](int owner) { return static_cast<int>(2 * shard(owner).size()); };

  const auto start = [&](Parcel& parcel, int step) {  // lesson 06: the receive first, then the send
    check_mpi(MPI_Irecv(parcel.incoming.data(), length(ring.owner(step + 1)), MPI_FLOAT, ring.prev(),
                        parcel.tag, comm.handle(), &parcel.requests[0]));
    check_mpi(MPI_Isend(parcel.current.data(), length(ring.owner(step)), MPI_FLOAT, ring.next(), parcel.tag,
                        comm.handle(), &parcel.requests[1]));
  };
  const auto arrived = [](Parcel& parcel) {
    int done = 0;
    check_mpi(MPI_Testall(2, parcel.requests, &done, MPI_STATUSES_IGNORE));
    return done != 0;
  };
  const auto finish = [&](Parcel& parcel) {
    while (!arrived(parcel)) std::this_thread::yield();  // a rank that shares the core may be the one to send
    std::swap(parcel.current, parcel.incoming);
  };
  const auto progress = [&] {
    (void)(arrived(kv) && arrived(gradients));
  };  // a message may move only inside MPI calls

  Tensor<float> added(gradients.current.shape());  // by one step, on this rank
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = ring.owner(step);
    if (!last) start(kv, step);

    added.fill(0);
    const View<float> k(kv.current.data(), shard(owner)), v(kv.current.data() + k.size(), shard(owner));
    const View<float> dk(added.data(), shard(owner)), dv(added.data() + dk.size(), shard(owner));
    engine.accumulate({k, v, placement.ranges(owner)}, {dk, dv}, progress);  // dQ stays

    // Exercise: `added` holds what this rank adds to the dK,dV of these K,V. Add it to the sum of the ranks
    // before, which arrives from the rank before, and send the sum on. finish(gradients) waits for what
    // start(gradients, step) of the step before began, and makes it gradients.current. Hop h starts at the end
    // of step h, for h = 0 .. gradient_hops - 1; where no hop was started nothing arrives. The elements of a tensor
    // x: x.view().elements(), a std::span.
    still_empty("dK,dV");
    if (!last) finish(kv);
  }
  // Exercise: wait for the last hop, if there are as many hops as steps. (There are none when N = 1.)
  still_empty("the last hop");
}

}  // namespace ring_attention::lesson
