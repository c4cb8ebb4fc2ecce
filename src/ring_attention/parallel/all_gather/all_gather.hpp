/// \file
/// All-gather: every rank gets the K,V of all ranks before it computes, as Llama 3 does (arXiv 2407.21783, 3.3.2).
///
/// The ranks compute with the shards in the order in which a ring brings them, and sum the gradients of a shard in the
/// order in which a ring does: the bits are those of the ring. A rank keeps the K,V of all ranks, N times the memory,
/// and no message hides behind computing.
#pragma once

#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/partition.hpp"

namespace ring_attention {

/// Each rank computes all heads of its tokens. No ranks share heads.
[[nodiscard]] Division all_gather();

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
  /// Frees the shards of all ranks but `own`.
  void free_others(int own) {
    for (int owner = 0; owner < placement_.ranks(); ++owner)
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

/// The K,V of all ranks, or what this rank adds to the gradients of all.
template <class T>
class KvAllGather : public KvWay<T> {
 public:
  using Sum = SumOf<T>;

  KvAllGather(const SharedAttention& shared, const KvShape& kv, const Memory& memory)
      : keys_(shared.tokens.keys), ring_(shared.grid.ring.ring(shared.grid.rank)) {
    kv_.emplace(kv, keys_, memory);
  }

  [[nodiscard]] View<T> k() override { return kv_->k(ring_.rank); }
  [[nodiscard]] View<T> v() override { return kv_->v(ring_.rank); }
  void add_sums(const KvShape& rows, const KvMemory& memory) override { sums_.emplace(rows, keys_, memory); }
  void open(Links& links) override { links_ = &links; }
  void forward(Engine<T>& engine) override {
    all_gather(links_->ring(), *kv_);
    for (int step = 0; step < ring_.steps(); ++step)
      engine.accumulate(kv_->keys(ring_.owner(step)), [this] { links_->progress(); });
  }
  /// Then sums what all ranks add to dK,dV of each shard, on its owner, which adds its own part first, then that of the next
  /// rank, and so on: the order of a ring. Memory besides: N - 1 shards of this rank, for what the ranks send.
  void backward(BackwardEngine<T>& engine) override {
    all_gather(links_->ring(), *kv_);
    for (int step = 0; step < ring_.steps(); ++step) {
      const int owner = ring_.owner(step);
      engine.accumulate(kv_->keys(owner), {sums_->k(owner), sums_->v(owner)}, [this] { links_->progress(); });
    }

    const std::span<Sum> own = sums_->elements(ring_.rank);
    std::vector<Tensor<Sum>> parts;
    Pieces pieces;
    for (int rank = 0; rank < ring_.size; ++rank) {
      const bool is_own = rank == ring_.rank;
      parts.push_back(kv_->memory().template array<Sum>({1, 1, is_own ? 0 : std::ssize(own), 1}));
      pieces.send.push_back(is_own ? std::span<const std::byte>() : std::as_bytes(sums_->elements(rank)));
      pieces.receive.push_back(std::as_writable_bytes(parts.back().view().elements()));
    }
    links_->ring().all_to_all(pieces);
    for (Ring from{ring_.next(), ring_.size}; from.rank != ring_.rank; from.rank = from.next())
      sums_->add(ring_.rank, parts[static_cast<std::size_t>(from.rank)].view().elements());
  }
  [[nodiscard]] KeyValueGradient<Sum> sums() override {
    kv_.reset();
    sums_->free_others(ring_.rank);
    return {sums_->k(ring_.rank), sums_->v(ring_.rank)};
  }
  void close() override {}

 private:
  Placement keys_;
  Ring ring_;
  std::optional<KvShards<T>> kv_;
  std::optional<KvShards<Sum>> sums_;
  Links* links_ = nullptr;
};

}  // namespace ring_attention
