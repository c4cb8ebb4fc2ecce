/// \file
/// `TravellingKv`: K,V of a rank where messages can take them; and the forward and the backward over those of all ranks.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ring_attention/parallel/all_gather.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention {

/// K,V of a rank, or its sums of dK,dV: a parcel for a ring, or the shards of all ranks for an all-gather. Zeros at first.
template <class T, class Memory = HostMemory>
struct TravellingKv {
  std::shared_ptr<KvParcel<T, Memory>> parcel;  ///< of a ring
  std::optional<KvShards<T, Memory>> shards;    ///< of an all-gather

  /// \param kv    shape of K (and of V); its seq is ignored
  /// \param hops  of the parcels in a ring (kv_hops()); none given: all
  TravellingKv(bool gathers, const Shape& kv, const Placement& keys, int rank, const Memory& memory = {},
               std::vector<int> hops = {})
      : rank_(rank) {
    if (gathers)
      shards.emplace(kv, keys, memory);
    else
      parcel = std::make_shared<KvParcel<T, Memory>>(kv, keys, rank, memory, std::move(hops));
  }

  /// Of this rank: K,V until they travel, and dK,dV in the end.
  [[nodiscard]] View<T> k() { return shards ? shards->k(rank_) : parcel->k(); }
  [[nodiscard]] View<T> v() { return shards ? shards->v(rank_) : parcel->v(); }

 private:
  int rank_;
};

/// Feeds the K,V of every rank to `engine`, which has begun on the queries of this rank.
///
/// \param kv    consumed
/// \param link  an all-gather's, over the ranks of `kv`; a ring does not use it
/// \param make_transport  make_transport(channel) makes the transport of a ring
/// \param progress  is called between the tiles of an all-gather; a ring calls its transport
/// \returns what the ring has sent
template <class T, class Memory>
TransportStatistics travelling_forward(Engine<T> auto& engine, AllToAll auto& link,
                                       const auto& make_transport, TravellingKv<T, Memory>& kv,
                                       const Progress& progress = {}) {
  if (kv.shards) {
    all_gather(link, *kv.shards);
    all_gather_forward(engine, Ring{link.rank(), link.size()}, *kv.shards, progress);
    return {};
  }
  auto transport = make_transport(0);
  ring_forward(engine, transport, *kv.parcel);
  return transport.statistics();
}

/// The same for the backward. \param gradients  zeros; its k() and v() become dK,dV of this rank
template <class T, class G, class Memory>
TransportStatistics travelling_backward(BackwardEngine<T, G> auto& engine, AllToAll auto& link,
                                        const auto& make_transport, TravellingKv<T, Memory>& kv,
                                        TravellingKv<G, Memory>& gradients, const Progress& progress = {}) {
  if (kv.shards) {
    all_gather(link, *kv.shards);
    all_gather_backward(engine, link, *kv.shards, *gradients.shards, progress);
    return {};
  }
  auto kv_transport = make_transport(0);
  auto gradient_transport = make_transport(1);
  ring_backward(engine, kv_transport, gradient_transport, *kv.parcel, *gradients.parcel);
  TransportStatistics all = kv_transport.statistics();
  return all += gradient_transport.statistics();
}

}  // namespace ring_attention
