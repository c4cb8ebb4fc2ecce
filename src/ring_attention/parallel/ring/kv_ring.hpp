/// \file
/// `KvRing`: K,V travel from rank to rank around a ring, and in a backward dK,dV with them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ring_attention/parallel/partition.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention {

template <class T>
class KvRing : public KvWay<T> {
 public:
  using Sum = SumOf<T>;

  KvRing(const SharedAttention& shared, const KvShape& kv, const Memory& memory)
      : keys_(shared.tokens.keys), rank_(shared.grid.ring.index(shared.grid.rank)), shape_(kv) {
    std::vector<int> hops;
    if (!shared.every_hop) hops = kv_hops(shared.scoring.mask, shared.tokens.queries, keys_);
    kv_.emplace(kv, keys_, rank_, memory, std::move(hops));
  }

  [[nodiscard]] View<T> k() override { return kv_->k(); }
  [[nodiscard]] View<T> v() override { return kv_->v(); }
  [[nodiscard]] KvParcel<T>& parcel() { return *kv_; }
  void add_sums(const KvShape& rows, const KvMemory& memory) override {
    sums_shape_ = rows;
    sums_.emplace(rows, keys_, rank_, memory);
    (void)sums_->spare_buffer();  // a rank without memory for it is found here
  }
  void open(Links& links) override {
    kv_transport_ = links.transport(Channel::kv, most_bytes<T>(shape_));
    if (sums_) sums_transport_ = links.transport(Channel::gradients, most_bytes<Sum>(sums_shape_));
  }
  void forward(Engine<T>& engine) override { ring_forward(engine, *kv_transport_, *kv_); }
  void backward(BackwardEngine<T>& engine) override {
    ring_backward(engine, *kv_transport_, *sums_transport_, *kv_, *sums_);
  }
  [[nodiscard]] TransportStatistics hops(Channel channel) const override {
    const auto& transport = channel == Channel::kv ? kv_transport_ : sums_transport_;
    return transport ? transport->statistics() : TransportStatistics{};
  }
  [[nodiscard]] KeyValueGradient<Sum> sums() override {
    kv_.reset();
    sums_->free_buffers();
    return {sums_->k(), sums_->v()};
  }
  void close() override {
    kv_transport_.reset();
    sums_transport_.reset();
  }

 private:
  /// Bytes of the largest parcel.
  template <class E>
  [[nodiscard]] std::size_t most_bytes(const KvShape& parcel) const {
    return static_cast<std::size_t>(parcel.with_seq(keys_.max_tokens()).elements()) * sizeof(E);
  }

  Placement keys_;
  int rank_;
  KvShape shape_, sums_shape_;
  std::optional<KvParcel<T>> kv_;
  std::optional<KvParcel<Sum>> sums_;
  std::unique_ptr<Transport> kv_transport_, sums_transport_;  // borrow the parcels
};

}  // namespace ring_attention
