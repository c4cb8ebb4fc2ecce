/// \file
/// The ring: queries stay, K,V go round, an engine merges.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, algorithm 1 (which, as printed, loops
/// one block short: N steps compute, N - 1 hops travel).
#pragma once

#include "ring_attention/ring/activity.hpp"
#include "ring_attention/ring/parcel.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Feeds the K,V of every rank to `engine`, which has begun on this rank's queries.
///
/// \param kv  holds this rank's own K,V; consumed: from three ranks on it ends with another rank's
/// \param activity  told about every step, for the watchdog
/// \param ring  steps and owners; the transport's own unless a test says otherwise
///
/// N steps, N - 1 hops. A rank without tokens sends an empty parcel: the rhythm is the same for all.
template <class Engine, Transport Link, class T, class Memory, class Topology = Ring>
void ring_forward(Engine& engine, Link& link, KvParcel<T, Memory>& kv, Activity& activity,
                  const Topology& ring) {
  const Progress progress = [&] {
    activity.beat();
    link.progress();
  };
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    if (!last) link.start(kv.exchange(ring.owner(step + 1)));

    activity.enter(Phase::compute, step);
    engine.accumulate(kv.current(), progress);
    link.computed();

    if (!last) {
      activity.enter(Phase::exchange, step, ring.prev());
      link.finish();
      kv.advance();
    }
  }
  activity.enter(Phase::drain);
  link.drain();
  kv.memory().wait([&] { activity.beat(); });  // the last step may take as long as it likes
}

template <class Engine, Transport Link, class T, class Memory>
void ring_forward(Engine& engine, Link& link, KvParcel<T, Memory>& kv, Activity& activity) {
  ring_forward(engine, link, kv, activity, link.ring());
}

}  // namespace ring_attention
