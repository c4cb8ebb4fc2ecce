/// \file
/// The ring backward: K,V go round again, and dK,dV travel with the K,V they belong to, one beat behind.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, appendix A (the backward of its code).
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/ring/activity.hpp"
#include "ring_attention/ring/parcel.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// The ring of the backward: gradients hop once a step, so that each parcel is home after N hops. N = 1: none.
struct BackwardRing : Ring {
  [[nodiscard]] constexpr int hops() const { return size > 1 ? size : 0; }
};

/// Turns K,V round the ring once more and brings dK,dV home.
///
/// \param engine  has begun on this rank's queries; afterwards finish() gives dQ
/// \param kv  this rank's own K,V; consumed
/// \param gradients  starts as zero, owned by this rank; ends as this rank's dK,dV
/// \param kv_link, gradient_link  two channels of one kind
///
/// At step t a rank adds what its queries contribute to the gradients of owner(t). That parcel left the
/// previous rank at the end of its own step t - 1, so it travels while this rank computes: N - 1 hops for
/// K,V and N for dK,dV. Each step is summed by itself first and added to the parcel once, so that every
/// transport adds in the same order. Memory: four KV shards, and six of gradients.
template <class Engine, Transport Link, class Wire, class T, class Memory, class Topology>
void ring_backward(Engine& engine, Link& kv_link, Link& gradient_link, KvParcel<Wire, Memory>& kv,
                   KvParcel<T, Memory>& gradients, Activity& activity, const Topology& ring) {
  const Progress progress = [&] {
    activity.beat();
    kv_link.progress();
    gradient_link.progress();
  };
  const Memory& memory = gradients.memory();
  KvBuffer<T, Memory> step_gradient = gradients.another_buffer();
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = kv.owner();
    if (!last) kv_link.start(kv.exchange(ring.owner(step + 1)));

    activity.enter(Phase::compute, step);
    memory.zero(step_gradient.elements(owner));
    engine.accumulate(kv.current(), {step_gradient.k(owner), step_gradient.v(owner)}, progress);
    kv_link.computed();

    activity.enter(Phase::exchange, step, ring.prev());
    if (step > 0) {  // the parcel that follows these K,V arrives
      gradient_link.finish();
      gradients.advance();
    }
    memory.add(gradients.elements(), std::span<const T>(step_gradient.elements(owner)));
    if (step < ring.hops()) gradient_link.start(gradients.exchange(ring.owner(step + 1)));
    if (!last) {
      kv_link.finish();
      kv.advance();
    }
  }
  if (ring.hops() == ring.steps()) {  // the last hop brings this rank's own parcel home
    gradient_link.finish();
    gradients.advance();
  }
  activity.enter(Phase::drain);
  kv_link.drain();
  gradient_link.drain();
  memory.wait([&] { activity.beat(); });
}

template <class Engine, Transport Link, class Wire, class T, class Memory>
void ring_backward(Engine& engine, Link& kv_link, Link& gradient_link, KvParcel<Wire, Memory>& kv,
                   KvParcel<T, Memory>& gradients, Activity& activity) {
  ring_backward(engine, kv_link, gradient_link, kv, gradients, activity, BackwardRing{kv_link.ring()});
}

}  // namespace ring_attention
