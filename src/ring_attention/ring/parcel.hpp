/// \file
/// `KvParcel`: K and V of one shard as one message, and the buffer the next one arrives in.
#pragma once

#include <utility>

#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Two buffers of one parcel each, `current` and `incoming`. A parcel is K followed by V, each
/// `[batch, kv_heads, tokens, dim]` of the shard's owner: 2 * batch * kv_heads * tokens * dim elements.
///
/// The caller writes its own K,V into k() and v() before the first step. From three ranks on the rotation
/// overwrites them: a caller who needs them later keeps a copy. Memory: four KV shards.
template <class T>
class KvParcel {
 public:
  /// \param kv  shape of K (and of V); its seq is ignored, the placement says who holds how many tokens
  /// \param owner  the rank whose K,V stand in `current` now
  KvParcel(const Shape& kv, const Placement& placement, int owner)
      : kv_(kv),
        placement_(placement),
        owner_(owner),
        incoming_owner_(owner),
        current_(kv.with_seq(2 * placement.max_tokens())),
        incoming_(kv.with_seq(ring_of_one() ? 0 : 2 * placement.max_tokens())) {}

  /// Writable K and V of the current owner.
  [[nodiscard]] View<T> k() { return {current_.data(), shape_of(owner_)}; }
  [[nodiscard]] View<T> v() { return {current_.data() + shape_of(owner_).size(), shape_of(owner_)}; }

  [[nodiscard]] int owner() const { return owner_; }
  [[nodiscard]] KeyValue<T> current() { return {k(), v(), placement_.runs(owner_)}; }

  /// The hop that sends the current parcel and receives that of `incoming_owner`.
  [[nodiscard]] Exchange exchange(int incoming_owner) {
    incoming_owner_ = incoming_owner;
    return {std::as_bytes(std::span<const T>(current_.data(), elements(owner_))),
            std::as_writable_bytes(std::span<T>(incoming_.data(), elements(incoming_owner)))};
  }

  /// The parcel that arrived becomes the current one.
  void advance() {
    std::swap(current_, incoming_);
    owner_ = incoming_owner_;
  }

 private:
  [[nodiscard]] bool ring_of_one() const { return placement_.ranks() == 1; }
  [[nodiscard]] Shape shape_of(int owner) const { return kv_.with_seq(placement_.tokens(owner)); }
  [[nodiscard]] std::size_t elements(int owner) const {
    return static_cast<std::size_t>(2 * shape_of(owner).size());
  }

  Shape kv_;
  Placement placement_;
  int owner_;
  int incoming_owner_;
  Tensor<T> current_;
  Tensor<T> incoming_;
};

}  // namespace ring_attention
