/// \file
/// `KvParcel`: K and V of one shard as one message, and the buffer the next one arrives in.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// The memory of parcels, and what a ring does with them besides sending. This one is host memory, and sums are done
/// at once. cuda::DeviceMemory is the other one: there sums are enqueued.
struct HostMemory {
  template <class T>
  using Array = Tensor<T>;  ///< zeros at first

  /// array = 0.
  template <class T>
  void zero(std::span<T> array) const {
    std::ranges::fill(array, T{0});
  }
  /// sum += term.
  template <class T>
  void add(std::span<T> sum, std::span<const T> term) const {
    std::ranges::transform(sum, term, sum.begin(), std::plus<>());
  }
};

/// Memory for the K,V of any rank: K followed by V, each `[batch, kv_heads, tokens, dim]` of the owner's tokens.
template <class T, class Memory = HostMemory>
class KvBuffer {
 public:
  /// \param kv  shape of K (and of V); its seq is ignored, the placement says how many tokens each rank holds
  KvBuffer(const Shape& kv, const Placement& placement, const Memory& memory = {})
      : kv_(kv), placement_(placement), memory_(memory), array_(kv.with_seq(2 * placement.max_tokens())) {}

  [[nodiscard]] KvBuffer another() const { return KvBuffer(kv_, placement_, memory_); }

  [[nodiscard]] View<T> k(int owner) { return {array_.data(), shape(owner)}; }
  [[nodiscard]] View<T> v(int owner) { return {array_.data() + shape(owner).size(), shape(owner)}; }
  /// Both: 2 * batch * kv_heads * tokens * dim elements.
  [[nodiscard]] std::span<T> elements(int owner) {
    return {array_.data(), static_cast<std::size_t>(2 * shape(owner).size())};
  }
  [[nodiscard]] const Memory& memory() const { return memory_; }

 private:
  [[nodiscard]] Shape shape(int owner) const { return kv_.with_seq(placement_.tokens(owner)); }

  Shape kv_;
  Placement placement_;
  Memory memory_;
  typename Memory::template Array<T> array_;
};

/// One message a hop: the K,V of one rank in `current`, and `incoming`, where the next one arrives.
///
/// The caller writes its own K,V into k() and v() before the first step. From three ranks on the rotation
/// overwrites them: a caller who needs them later keeps a copy. Memory: four KV shards (two in a ring of one).
template <class T, class Memory = HostMemory>
class KvParcel {
 public:
  /// \param owner  the rank whose K,V are in `current` now
  KvParcel(const Shape& kv, const Placement& placement, int owner, const Memory& memory = {})
      : placement_(placement), owner_(owner), incoming_owner_(owner), current_(kv, placement, memory) {
    if (placement.ranks() > 1) incoming_.emplace(kv, placement, memory);
  }

  /// Writable K and V of the current owner.
  [[nodiscard]] View<T> k() { return current_.k(owner_); }
  [[nodiscard]] View<T> v() { return current_.v(owner_); }
  [[nodiscard]] std::span<T> elements() { return current_.elements(owner_); }

  /// A buffer of the same size, made at the first call: for what one step adds to the gradients. It lives as long as
  /// the parcel, because to free device memory is to wait for the device.
  [[nodiscard]] KvBuffer<T, Memory>& spare_buffer() {
    if (!spare_) spare_.emplace(current_.another());
    return *spare_;
  }
  [[nodiscard]] const Memory& memory() const { return current_.memory(); }

  [[nodiscard]] int owner() const { return owner_; }
  [[nodiscard]] KeyValue<T> current() { return {k(), v(), placement_.ranges(owner_)}; }

  /// The hop that sends the current parcel and receives that of `incoming_owner`.
  [[nodiscard]] Exchange exchange(int incoming_owner) {
    require(incoming_.has_value(), "KvParcel: a ring of one exchanges nothing");
    incoming_owner_ = incoming_owner;
    return {std::as_bytes(current_.elements(owner_)),
            std::as_writable_bytes(incoming_->elements(incoming_owner))};
  }

  /// The parcel that arrived becomes the current one.
  void advance() {
    std::swap(current_, *incoming_);
    owner_ = incoming_owner_;
  }

 private:
  Placement placement_;
  int owner_;
  int incoming_owner_;
  KvBuffer<T, Memory> current_;
  std::optional<KvBuffer<T, Memory>> incoming_, spare_;
};

}  // namespace ring_attention
