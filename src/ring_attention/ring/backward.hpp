/// \file
/// The ring, backward: K,V travel round the ring again, and dK,dV travel with the K,V they belong to, one step behind.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, appendix A (the backward of its code).
#pragma once

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/ring/parcel.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Feeds the K,V of every rank to `engine` and returns dK,dV to their owners.
///
/// \param engine  has begun on this rank's queries; afterwards finish() gives dQ
/// \param kv_transport, gradient_transport  two channels of one kind
/// \param kv  this rank's own K,V; consumed
/// \param gradients  starts as zero, owned by this rank; ends as this rank's dK,dV
///
/// At step t a rank adds what its queries contribute to the gradients of owner(t). That parcel left the
/// previous rank at the end of its own step t - 1, so it travels while this rank computes: N - 1 hops for
/// K,V and N for dK,dV. Each step is summed by itself first and added to the parcel once, so that a
/// step need not wait for the parcel, whose hop it hides. Memory: four KV shards, and six of gradients.
template <class T>
void ring_backward(BackwardEngine<T>& engine, Transport& kv_transport, Transport& gradient_transport,
                   KvParcel<T>& kv, KvParcel<SumOf<T>>& gradients) {
  const Ring ring = kv_transport.ring();
  const Progress progress = [&] {
    kv_transport.progress();
    gradient_transport.progress();
  };
  KvBuffer<SumOf<T>>& step_gradient = gradients.spare_buffer();
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = kv.owner();
    if (!last) kv_transport.start(kv.exchange(ring.owner(step + 1)));

    gradients.memory().zero(step_gradient.elements(owner));
    engine.accumulate(kv.current(), {step_gradient.k(owner), step_gradient.v(owner)}, progress);

    if (step > 0) {  // dK,dV of these K,V are here
      gradient_transport.finish();
      gradients.advance();
    }
    gradients.add_spare();
    if (step < ring.gradient_hops()) gradient_transport.start(gradients.exchange(ring.owner(step + 1)));
    if (!last) {
      kv_transport.finish();
      kv.advance();
    }
  }
  if (ring.gradient_hops() == ring.steps()) {  // the last hop returns this rank's own parcel
    gradient_transport.finish();
    gradients.advance();
  }
  kv_transport.drain();
  gradient_transport.drain();
}

}  // namespace ring_attention
