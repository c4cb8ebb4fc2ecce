/// \file
/// `KvStorage`: K,V of a rank where messages can take them, or its sums of dK,dV.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "ring_attention/parallel/collectives/all_gather.hpp"
#include "ring_attention/ring/parcel.hpp"

namespace ring_attention {

/// A parcel for a ring, or the shards of all ranks for an all-gather. Zeros at first.
template <class T>
struct KvStorage {
  std::optional<KvParcel<T>> parcel;  ///< of a ring
  std::optional<KvShards<T>> shards;  ///< of an all-gather

  /// \param kv    its seq is ignored
  /// \param hops  of the parcels in a ring (kv_hops()); none given: all
  KvStorage(bool all_gathers_kv, const KvShape& kv, const Placement& keys, int rank,
            const KvMemory& memory = host_memory(), std::vector<int> hops = {})
      : rank_(rank) {
    if (all_gathers_kv)
      shards.emplace(kv, keys, memory);
    else
      parcel.emplace(kv, keys, rank, memory, std::move(hops));
  }

  /// What this rank owns: K,V until they travel, and dK,dV in the end.
  [[nodiscard]] View<T> k() { return shards ? shards->k(rank_) : parcel->k(); }
  [[nodiscard]] View<T> v() { return shards ? shards->v(rank_) : parcel->v(); }

  /// After the last message: frees what belongs to other ranks.
  void keep_own() {
    if (parcel) parcel->free_buffers();
    if (shards) shards->free_others(rank_);
  }
  /// Frees all memory.
  void release() {
    parcel.reset();
    shards.reset();
  }

 private:
  int rank_;
};

}  // namespace ring_attention
