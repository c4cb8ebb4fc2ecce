// Wrong variants of the backward that look right. Each changes what goes into an engine or comes out, or is a transport.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::test {

// ---- the engine ----------------------------------------------------------------------------------------

/// dK = dS^T Q: the scale is in dQ, and missing in dK.
template <class T>
class KeysWithoutScale : public BlockwiseBackward<T> {
 public:
  KeysWithoutScale(const Scoring& scoring, Index block)
      : BlockwiseBackward<T>(scoring, block), scale_(static_cast<T>(scoring.scale)) {}
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                  const Progress& progress = {}) override {
    Tensor<T> added(gradient.k.shape());
    BlockwiseBackward<T>::accumulate(kv, {added, gradient.v}, progress);
    for (Index i = 0; i < added.size(); ++i) gradient.k.data()[i] += added.data()[i] / scale_;
  }

 private:
  T scale_;
};

/// Masks by the position of a token in its shard, not in the sequence.
template <class Base>
class LocalForward : public Base {
 public:
  using Base::Base;
  using T = typename Base::value_type;

  void begin(View<const T> q, const TokenRanges& ranges, View<const T> bias = {}) {
    Base::begin(q, whole(count(ranges)), bias);
  }
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override {
    Base::accumulate({kv.k, kv.v, whole(count(kv.ranges))}, progress);
  }
};
template <class Base>
class LocalBackward : public Base {
 public:
  using Base::Base;
  using T = typename Base::value_type;

  void begin(const BackwardInputs<T>& inputs, const TokenRanges& ranges) {
    Base::begin(inputs, whole(count(ranges)));
  }
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                  const Progress& progress = {}) override {
    Base::accumulate({kv.k, kv.v, whole(count(kv.ranges))}, gradient, progress);
  }
};

// ---- the transport; for shards of equal length -----------------------------------------------------------

/// Gradients stop where K,V stop: one hop short of their owner.
class NotReturned : public LoopbackTransport {
 public:
  NotReturned(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), hops_(channel == 1 ? ring().gradient_hops() : 0) {}

  void start(const Hop& hop) override {
    hop_ = hop;
    if (++started_ != hops_) LoopbackTransport::start(hop);
  }
  void finish() override {
    if (started_ == hops_)
      std::ranges::copy(hop_.send, hop_.receive.begin());
    else
      LoopbackTransport::finish();
  }

 private:
  int hops_, started_ = 0;
  Hop hop_;
};

/// dK,dV stay: a rank adds what it computes for the keys of any rank to its own gradients.
class LocalGradients : public LoopbackTransport {
 public:
  LocalGradients(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), local_(channel == 1) {}

  void start(const Hop& hop) override {
    hop_ = hop;
    if (!local_) LoopbackTransport::start(hop);
  }
  void finish() override {
    if (local_)
      std::ranges::copy(hop_.send, hop_.receive.begin());
    else
      LoopbackTransport::finish();
  }

 private:
  bool local_;
  Hop hop_;
};

/// The right K,V travel, but a step computes with those of the step before: a buffer reused one step too long.
class StaleKeysAndValues : public LoopbackTransport {
 public:
  StaleKeysAndValues(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), stale_(channel == 0) {}

  void start(const Hop& hop) override {
    if (stale_ && current_.empty()) current_.assign(hop.send.begin(), hop.send.end());
    hop_ = hop;
    LoopbackTransport::start({stale_ ? std::span<const std::byte>(current_) : hop.send, hop.receive});
  }
  void finish() override {
    LoopbackTransport::finish();
    if (stale_) std::swap_ranges(current_.begin(), current_.end(), hop_.receive.begin());
  }

 private:
  bool stale_;
  Hop hop_;
  std::vector<std::byte> current_;  // what belongs to this step; from the second step on not computed with
};

}  // namespace ring_attention::test
