/// \file
/// Links and engines with which `ring-attention bench` measures one part of an attention at a time.
#pragma once

#include <utility>

#include "ring_attention/parallel/observer.hpp"
#include "ring_attention/ring/transports/adapter.hpp"
#include "ring_attention/ring/transports/pending_hop.hpp"

namespace ring_attention {

/// Sends nothing: K,V stay where they are, under the names of other ranks.
class SilentTransport : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Hop&) override {}
  void finish() override {}
};

class SilentAllToAll : public AllToAllAdapter {
 public:
  using AllToAllAdapter::AllToAllAdapter;
  void all_to_all(const Pieces&) override {}
};

/// Begins a hop in finish(): nothing travels while the rank computes.
class SequentialTransport : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Hop& hop) override { pending_.start(hop); }
  void finish() override {
    TransportAdapter::start(pending_.finish());
    TransportAdapter::finish();
  }
  void drain() override {
    pending_.require_idle();
    TransportAdapter::drain();
  }

 private:
  PendingHop pending_;
};

/// Other links, with transports in an adapter: the observers see what the adapter does.
template <class Adapter>
class AdaptedLinks : public Links {
 public:
  explicit AdaptedLinks(Links& links, Observers observers = {})
      : links_(links), observers_(std::move(observers)) {}
  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override {
    return std::make_unique<Adapter>(observed(links_.transport(channel, most_bytes), observers_, channel));
  }
  [[nodiscard]] AllToAll& ring() override { return links_.ring(); }
  [[nodiscard]] AllToAll& ulysses() override { return links_.ulysses(); }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override { return links_.group(axis); }
  void shares(const SharedAttention& shared) override { links_.shares(shared); }
  void progress() override { links_.progress(); }

 private:
  Links& links_;
  Observers observers_;
};

/// Passes on what a rank computes, and not what an adapter is told to send.
class ComputeObserver : public Observer {
 public:
  explicit ComputeObserver(Observers observers) : observers_(std::move(observers)) {}
  void computes(const Pass& pass) override { tell(observers_, &Observer::computes, pass); }
  void step(int number, const TokenRanges& keys) override { tell(observers_, &Observer::step, number, keys); }
  void begins(const char* part) override { tell(observers_, &Observer::begins, part); }
  void ends() override { tell(observers_, &Observer::ends); }
  void beats() override { tell(observers_, &Observer::beats); }

 private:
  Observers observers_;
};

class SilentLinks : public AdaptedLinks<SilentTransport> {
 public:
  SilentLinks(Links& links, const Observers& observers)
      : AdaptedLinks(links, observers), ring_(links.ring()) {}
  [[nodiscard]] AllToAll& ring() override { return ring_; }

 private:
  SilentAllToAll ring_;
};

/// Compute nothing: a ring with them only sends.
template <class T>
class NoEngine : public Engine<T> {
 public:
  void accumulate(const KeyValue<T>&, const Progress&) override {}
  [[nodiscard]] AttentionResult<SumOf<T>> finish() override { return {}; }
};
template <class T>
class NoBackward : public BackwardEngine<T> {
 public:
  void accumulate(const KeyValue<T>&, const KeyValueGradient<SumOf<T>>&, const Progress&) override {}
  [[nodiscard]] Tensor<SumOf<T>> finish() override { return {}; }
};

}  // namespace ring_attention
