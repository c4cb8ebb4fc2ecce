// Lesson 06 between GPUs, the idea: start, compute and finish are enqueued, on two streams. The host waits at the end.
#pragma once

#include <nccl.h>

#include <utility>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

inline void check_nccl(ncclResult_t code) {
  require(code == ncclSuccess, std::string("NCCL: ") + ncclGetErrorString(code));
}

/// Feeds the K,V of every rank to `engine`, which enqueues its work on `compute`.
///
/// At step t rank r holds the K,V of rank (r - t) mod N. They travel on while the GPU merges them: N steps, N - 1 hops.
///
/// \param current   a parcel: K, then V of one rank, in one message; at first those of this rank
/// \param incoming  where the next parcel arrives; both buffers are as large as the largest parcel
/// \param kv        the shape of K, and of V, of the whole sequence
template <class T>
void ring(Engine<T>& engine, cuda::DeviceTensor<T>& current, cuda::DeviceTensor<T>& incoming, const Shape& kv,
          const Placement& placement, const Ring& ring, ncclComm_t comm, const cuda::Stream& compute,
          const cuda::Stream& transfer) {
  const auto shape = [&](int owner) { return kv.with_seq(placement.tokens(owner)); };
  const auto bytes = [&](int owner) { return static_cast<std::size_t>(2 * shape(owner).size()) * sizeof(T); };
  cuda::Event ready, arrived;  // recorded again at each step: what was enqueued before waits as it did
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = ring.owner(step), next_owner = ring.owner(step + 1);

    if (!last) {
      ready.record(compute.handle());  // the step before is computed: no kernel reads the incoming buffer
      ready.block(transfer.handle());
      check_nccl(ncclGroupStart());  // both at once: a send alone may wait for its receiver
      if (bytes(owner) > 0)          // an empty message does not travel; both ends know its length
        check_nccl(ncclSend(current.data(), bytes(owner), ncclUint8, ring.next(), comm, transfer.handle()));
      if (bytes(next_owner) > 0)
        check_nccl(
            ncclRecv(incoming.data(), bytes(next_owner), ncclUint8, ring.prev(), comm, transfer.handle()));
      check_nccl(ncclGroupEnd());
      arrived.record(transfer.handle());
    }

    const View<T> k(current.data(), shape(owner)), v(current.data() + k.size(), shape(owner));
    engine.accumulate({k, v, placement.ranges(owner)});  // enqueued: the host goes on
    if (last) break;  // the last parcel has been used: it does not travel on

    arrived.block(compute.handle());  // the next step begins when its K,V are here
    std::swap(current, incoming);     // the parcel that arrives is the next one to use and to send
  }
  transfer.synchronize();
  compute.synchronize();
}

}  // namespace ring_attention::lesson
