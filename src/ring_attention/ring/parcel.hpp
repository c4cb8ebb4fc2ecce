/// \file
/// `KvParcel`: K and V of one shard as one message, and the buffer the next one arrives in.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/memory.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// The memory of K,V, or of dK,dV, which it adds. They are added by different rules where they are rows of exact sums.
struct KvMemory {
  const Memory* k;
  const Memory* v;

  KvMemory(const Memory& both) : KvMemory(both, both) {}  // NOLINT: implicit on purpose
  KvMemory(const Memory& of_k, const Memory& of_v) : k(&of_k), v(&of_v) {}

  /// sum += term: K followed by V. \param of_k  elements of K
  template <class T>
  void add(std::span<T> sum, std::span<const T> term, Index of_k) const {
    if (k == v) return k->add(sum, term);
    const auto n = static_cast<std::size_t>(of_k);
    k->add(sum.first(n), term.first(n));
    v->add(sum.subspan(n), term.subspan(n));
  }
};

/// Memory for the K,V of any rank: K `[batch, kv_heads, tokens, dim]` of the owner's tokens, followed by V
/// `[batch, kv_heads, tokens, value_dim]`.
template <class T>
class KvBuffer {
 public:
  /// \param kv  its seq is ignored, the placement says how many tokens each rank holds
  KvBuffer(const KvShape& kv, const Placement& placement, const KvMemory& memory = host_memory())
      : kv_(kv),
        placement_(placement),
        memory_(memory),
        array_(memory.k->array<T>({1, 1, 1, kv.with_seq(placement.max_tokens()).elements()})) {}

  [[nodiscard]] KvBuffer another() const { return KvBuffer(kv_, placement_, memory_); }

  [[nodiscard]] View<T> k(int owner) { return {array_.data(), shape(owner)}; }
  [[nodiscard]] View<T> v(int owner) { return {array_.data() + shape(owner).size(), shape(owner).values()}; }
  /// K and V together: batch * kv_heads * tokens * (dim + value_dim) elements.
  [[nodiscard]] std::span<T> elements(int owner) {
    return {array_.data(), static_cast<std::size_t>(shape(owner).elements())};
  }
  /// Adds the K and V of `owner` in `term`.
  void add(int owner, KvBuffer& term) {
    memory_.add<T>(elements(owner), term.elements(owner), shape(owner).size());
  }
  [[nodiscard]] const Memory& memory() const { return *memory_.k; }

 private:
  [[nodiscard]] KvShape shape(int owner) const { return kv_.with_seq(placement_.tokens(owner)); }

  KvShape kv_;
  Placement placement_;
  KvMemory memory_;
  Tensor<T> array_;
};

/// One message a hop: the K,V of one rank in `current`, and `incoming`, where the next one arrives.
///
/// The caller writes its own K,V into k() and v() before the first step. From three ranks on the rotation
/// overwrites them: a caller who needs them later keeps a copy. Memory: four KV shards (two in a ring of one).
template <class T>
class KvParcel {
 public:
  /// \param owner  the rank whose K,V are in `current` now: this rank
  /// \param hops   how many hops the K,V of each rank make (kv_hops()); none given: all
  KvParcel(const KvShape& kv, const Placement& placement, int owner, const KvMemory& memory = host_memory(),
           std::vector<int> hops = {})
      : placement_(placement),
        ring_{owner, placement.ranks()},
        hops_(std::move(hops)),
        owner_(owner),
        incoming_owner_(owner),
        current_(kv, placement, memory) {
    if (placement.ranks() > 1) incoming_.emplace(kv, placement, memory);
  }

  /// Writable K and V of the current owner.
  [[nodiscard]] View<T> k() { return current_.k(owner_); }
  [[nodiscard]] View<T> v() { return current_.v(owner_); }
  [[nodiscard]] std::span<T> elements() { return current_.elements(owner_); }

  /// A buffer of the same size, made at the first call: for what one step adds to the gradients. It lives as long as
  /// the parcel, because to free device memory is to wait for the device.
  [[nodiscard]] KvBuffer<T>& spare_buffer() {
    if (!spare_) spare_.emplace(current_.another());
    return *spare_;
  }
  /// Adds what spare_buffer() has for the current owner.
  void add_spare() { current_.add(owner_, spare_buffer()); }
  /// After the last hop: frees all but the current parcel.
  void free_buffers() {
    incoming_.reset();
    spare_.reset();
  }
  [[nodiscard]] const Memory& memory() const { return current_.memory(); }

  [[nodiscard]] int owner() const { return owner_; }
  [[nodiscard]] KeyValue<T> current() { return {k(), v(), placement_.ranges(owner_)}; }

  /// The hop that sends the current parcel and receives that of `incoming_owner`. A side is empty when no rank further
  /// on needs the parcel: then current() has the right shape, and numbers of another rank that no query here sees.
  [[nodiscard]] Hop exchange(int incoming_owner) {
    require(incoming_.has_value(), "KvParcel: a ring of one exchanges nothing");
    incoming_owner_ = incoming_owner;
    Hop hop{std::as_bytes(current_.elements(owner_)),
            std::as_writable_bytes(incoming_->elements(incoming_owner))};
    if (!makes_hop(owner_, ring_.step_of(owner_) + 1)) hop.send = {};
    if (!makes_hop(incoming_owner, ring_.step_of(incoming_owner))) hop.receive = {};
    return hop;
  }

  /// The parcel that arrived becomes the current one.
  void advance() {
    std::swap(current_, *incoming_);
    owner_ = incoming_owner_;
  }

 private:
  [[nodiscard]] bool makes_hop(int owner, int hop) const {
    return hops_.empty() || hop <= hops_[static_cast<std::size_t>(owner)];
  }

  Placement placement_;
  Ring ring_;
  std::vector<int> hops_;
  int owner_;
  int incoming_owner_;
  KvBuffer<T> current_;
  std::optional<KvBuffer<T>> incoming_, spare_;
};

}  // namespace ring_attention
