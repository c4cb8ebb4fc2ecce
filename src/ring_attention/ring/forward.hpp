/// \file
/// The ring, forward: queries stay, K,V travel, an engine merges.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, algorithm 1 (as printed, its loop is one shard
/// short: N steps compute, N - 1 hops travel).
#pragma once

#include "ring_attention/ring/parcel.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

// clang-format off
/// Feeds the K,V of every rank to `engine`, which has begun on this rank's queries.
///
/// \param kv  this rank's own K,V; consumed: from three ranks on it ends with another rank's
///
/// N steps, N - 1 hops. All ranks make the same calls. A parcel without tokens, or one that no rank further on needs
/// (kv_hops.hpp), is an exchange with an empty side: no message.
template <class T>
void ring_forward(Engine<T>& engine, Transport& transport, KvParcel<T>& kv) {
  const Ring ring = transport.ring();
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    if (!last) transport.start(kv.exchange(ring.owner(step + 1)));   // a copy of K,V leaves
    engine.accumulate(kv.current(), [&] { transport.progress(); });  // merge into (o, m, l)
    if (!last) { transport.finish(); kv.advance(); }                 // the next K,V are here
  }
  transport.drain();
}
// clang-format on

}  // namespace ring_attention
