// Wrong variants of the backward that look right. Each is one replaced parameter of the engine or the ring.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::test {

// ---- the engine ----------------------------------------------------------------------------------------

/// dK = dS^T Q: the scale is in dQ, and missing in dK.
struct KeysWithoutScale : StandardGradientRules {
  template <class T>
  static T key_scale(T) {
    return 1;
  }
};

/// Masks by the position of a token in its shard, not in the sequence.
template <class Engine>
class LocalPositions : public Engine {
 public:
  using Engine::Engine;
  using Value = typename Engine::value_type;

  template <class Queries, class... More>
  void begin(const Queries& queries, const TokenRanges& ranges, const More&... more) {
    Engine::begin(queries, whole(count(ranges)), more...);
  }
  void accumulate(KeyValue<Value> kv, const Progress& progress) {
    kv.ranges = whole(count(kv.ranges));
    Engine::accumulate(kv, progress);
  }
  void accumulate(KeyValue<Value> kv, const KeyValueGradient<Value>& gradient, const Progress& progress) {
    kv.ranges = whole(count(kv.ranges));
    Engine::accumulate(kv, gradient, progress);
  }
};

// ---- the ring's topology -------------------------------------------------------------------------------

/// Gradients stop where K,V stop: one hop short of their owner.
struct NotReturned : Ring {
  [[nodiscard]] constexpr int gradient_hops() const { return size - 1; }
};

// ---- the transport; for shards of equal length -----------------------------------------------------------

/// dK,dV stay: a rank adds what it computes for the keys of any rank to its own gradients.
class LocalGradients : public LoopbackTransport {
 public:
  LocalGradients(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), local_(channel == 1) {}

  void start(const Exchange& exchange) {
    exchange_ = exchange;
    if (!local_) LoopbackTransport::start(exchange);
  }
  void finish() {
    if (local_)
      std::ranges::copy(exchange_.send, exchange_.receive.begin());
    else
      LoopbackTransport::finish();
  }

 private:
  bool local_;
  Exchange exchange_;
};

/// The right K,V travel, but a step computes with those of the step before: a buffer reused one step too long.
class StaleKeysAndValues : public LoopbackTransport {
 public:
  StaleKeysAndValues(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), stale_(channel == 0) {}

  void start(const Exchange& exchange) {
    if (stale_ && current_.empty()) current_.assign(exchange.send.begin(), exchange.send.end());
    exchange_ = exchange;
    LoopbackTransport::start(
        {stale_ ? std::span<const std::byte>(current_) : exchange.send, exchange.receive});
  }
  void finish() {
    LoopbackTransport::finish();
    if (stale_) std::swap_ranges(current_.begin(), current_.end(), exchange_.receive.begin());
  }

 private:
  bool stale_;
  Exchange exchange_;
  std::vector<std::byte> current_;  // what belongs to this step; from the second step on not computed with
};

static_assert(Transport<LocalGradients> && Transport<StaleKeysAndValues>);

}  // namespace ring_attention::test
