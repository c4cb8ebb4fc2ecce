// Lesson 08 between GPUs, the idea: hops and sums are enqueued, on two streams, and events order them.
#pragma once

#include <nccl.h>

#include <utility>
#include <vector>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

inline void check_nccl(ncclResult_t code) {
  require(code == ncclSuccess, std::string("NCCL: ") + ncclGetErrorString(code));
}

/// A parcel, K,V of one rank in one message or their gradients, and the buffer in which the next one arrives.
template <class T>
struct Parcel {
  cuda::DeviceTensor<T> current, incoming;  // each as large as the largest parcel
  std::vector<cuda::Event> arrived = {};    // one a hop, on the transfer stream
};

/// Feeds the K,V of every rank to `engine`, which enqueues its work on `compute`, and sends the dK,dV of every rank
/// back to their owner.
///
/// At step t rank r holds the K,V of rank (r - t) mod N. dK,dV follow them one step behind, and need a hop more. All
/// hops are on one stream, in the same order on every rank: NCCL has no tags, and that order pairs a send with its
/// receive.
///
/// \param kv             this rank's K,V at first; they make N - 1 hops
/// \param gradients      zeros at first, this rank's dK,dV in the end
/// \param shape          of K, and of V, of the whole sequence
/// \param gradient_hops  of dK,dV: N, or none when N = 1; the last one ends at the owner
template <class T>
void ring(BackwardEngine<T>& engine, Parcel<T>& kv, Parcel<float>& gradients, const Shape& shape,
          const Placement& placement, const Ring& ring, ncclComm_t comm, const cuda::Stream& compute,
          const cuda::Stream& transfer, int gradient_hops) {
  const auto shard = [&](int owner) { return shape.with_seq(placement.tokens(owner)); };
  const auto length = [&](int owner) { return static_cast<std::size_t>(2 * shard(owner).size()); };

  cuda::Event ready;
  const auto start = [&]<class X>(Parcel<X>& parcel, int step) {  // lesson 06: when all before it is computed
    const std::size_t out = length(ring.owner(step)) * sizeof(X),
                      in = length(ring.owner(step + 1)) * sizeof(X);
    ready.record(compute.handle());
    ready.block(transfer.handle());
    check_nccl(ncclGroupStart());
    if (out > 0)
      check_nccl(ncclSend(parcel.current.data(), out, ncclUint8, ring.next(), comm, transfer.handle()));
    if (in > 0)
      check_nccl(ncclRecv(parcel.incoming.data(), in, ncclUint8, ring.prev(), comm, transfer.handle()));
    check_nccl(ncclGroupEnd());
    parcel.arrived.emplace_back().record(transfer.handle());
  };
  const auto finish = [&](auto& parcel) {  // what is enqueued from here on sees the parcel
    parcel.arrived.back().block(compute.handle());
    std::swap(parcel.current, parcel.incoming);
  };

  const cuda::DeviceMemory memory(compute.handle());
  cuda::DeviceTensor<float> added(gradients.current.shape());  // by one step, on this rank
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = ring.owner(step);
    if (!last) start(kv, step);

    memory.zero(added.view().elements());
    const View<T> k(kv.current.data(), shard(owner)), v(kv.current.data() + k.size(), shard(owner));
    const View<float> dk(added.data(), shard(owner)), dv(added.data() + dk.size(), shard(owner));
    engine.accumulate({k, v, placement.ranges(owner)}, {dk, dv});  // dQ stays

    if (0 < step && step <= gradient_hops) finish(gradients);  // the dK,dV of these K,V, from the rank before
    memory.add(gradients.current.view().elements(), std::as_const(added).view().elements());
    if (step < gradient_hops) start(gradients, step);
    if (!last) finish(kv);
  }
  if (gradient_hops == ring.steps()) finish(gradients);  // at their owner, with what all N ranks added
  transfer.synchronize();
  compute.synchronize();
}

}  // namespace ring_attention::lesson
