/// \file
/// All-gather: every rank gets the K,V of all ranks before it computes, as Llama 3 does (arXiv 2407.21783, 3.3.2).
///
/// The ranks compute with the shards in the order in which a ring brings them, and sum the gradients of a shard in the
/// order in which a ring does: the bits are those of the ring. A rank keeps the K,V of all ranks, N times the memory,
/// and no message hides behind computing.
#pragma once

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/ring/parcel.hpp"

namespace ring_attention {

/// The K,V of all ranks, or what one rank adds to the gradients of all: one array for each owner.
template <class T>
class KvShards {
 public:
  /// \param kv  its seq is ignored
  KvShards(const KvShape& kv, const Placement& placement, const KvMemory& memory = host_memory())
      : kv_(kv), placement_(placement), memory_(memory) {
    for (int owner = 0; owner < placement.ranks(); ++owner)
      shards_.push_back(memory.k->array<T>({1, 1, 1, shape(owner).elements()}));
  }

  /// `[batch, kv_heads, tokens of the owner, dim]`, and value_dim columns.
  [[nodiscard]] View<T> k(int owner) { return {shard(owner).data(), shape(owner)}; }
  [[nodiscard]] View<T> v(int owner) {
    return {shard(owner).data() + shape(owner).size(), shape(owner).values()};
  }
  /// K, then V.
  [[nodiscard]] std::span<T> elements(int owner) { return shard(owner).view().elements(); }

  [[nodiscard]] KeyValue<T> keys(int owner) { return {k(owner), v(owner), placement_.ranges(owner)}; }
  [[nodiscard]] int ranks() const { return placement_.ranks(); }
  /// Frees the shards of all ranks but `own`.
  void free_others(int own) {
    for (int owner = 0; owner < ranks(); ++owner)
      if (owner != own) shard(owner) = {};
  }
  /// Adds another rank's K and V to those of `owner`.
  void add(int owner, std::span<const T> term) { memory_.add(elements(owner), term, shape(owner).size()); }
  [[nodiscard]] const Memory& memory() const { return *memory_.k; }

 private:
  [[nodiscard]] Tensor<T>& shard(int owner) { return shards_[static_cast<std::size_t>(owner)]; }
  [[nodiscard]] KvShape shape(int owner) const { return kv_.with_seq(placement_.tokens(owner)); }

  KvShape kv_;
  Placement placement_;
  KvMemory memory_;
  std::vector<Tensor<T>> shards_;
};

/// Sends the shard of this rank, which the caller has written, to all ranks, and receives theirs.
template <class T>
void all_gather(AllToAll& link, KvShards<T>& kv) {
  Pieces pieces;
  for (int rank = 0; rank < link.size(); ++rank) {
    pieces.send.push_back(std::as_bytes(kv.elements(link.rank())));
    pieces.receive.push_back(std::as_writable_bytes(kv.elements(rank)));
  }
  pieces.receive[static_cast<std::size_t>(link.rank())] = {};  // it is where it belongs
  pieces.send[static_cast<std::size_t>(link.rank())] = {};
  link.all_to_all(pieces);
}

/// Feeds the K,V of every rank to `engine`, which has begun on the queries of rank `ring.rank`.
/// \param progress  is called between tiles
template <class T>
void all_gather_forward(Engine<T>& engine, const Ring& ring, KvShards<T>& kv, const Progress& progress = {}) {
  for (int step = 0; step < ring.steps(); ++step) engine.accumulate(kv.keys(ring.owner(step)), progress);
}

/// Feeds the K,V of every rank to the backward; then sums what all ranks add to dK,dV of each shard, on its owner.
///
/// \param gradients  zeros; ends with dK,dV of this rank at its own place, and what this rank adds to the others'
///
/// Memory besides: N - 1 shards of this rank, for what the ranks send. The owner adds its own part first, then that of the
/// next rank, and so on: the order of a ring.
template <class T>
void all_gather_backward(BackwardEngine<T>& engine, AllToAll& link, KvShards<T>& kv,
                         KvShards<SumOf<T>>& gradients, const Progress& progress = {}) {
  using G = SumOf<T>;
  const Ring ring{link.rank(), link.size()};
  for (int step = 0; step < ring.steps(); ++step) {
    const int owner = ring.owner(step);
    engine.accumulate(kv.keys(owner), {gradients.k(owner), gradients.v(owner)}, progress);
  }

  const std::span<G> own = gradients.elements(ring.rank);
  std::vector<Tensor<G>> parts;
  Pieces pieces;
  for (int rank = 0; rank < ring.size; ++rank) {
    parts.push_back(
        kv.memory().template array<G>({1, 1, rank == ring.rank ? 0 : static_cast<Index>(own.size()), 1}));
    pieces.send.push_back(rank == ring.rank ? std::span<const std::byte>()
                                            : std::as_bytes(gradients.elements(rank)));
    pieces.receive.push_back(std::as_writable_bytes(parts.back().view().elements()));
  }
  link.all_to_all(pieces);
  for (Ring from{ring.next(), ring.size}; from.rank != ring.rank; from.rank = from.next())
    gradients.add(ring.rank, parts[static_cast<std::size_t>(from.rank)].view().elements());
}

}  // namespace ring_attention
