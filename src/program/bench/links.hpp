/// \file
/// Links and engines with which `ring-attention bench` measures one part of an attention at a time.
#pragma once

#include <utility>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/ring/transports/adapter.hpp"
#include "ring_attention/ring/transports/pending_exchange.hpp"

namespace ring_attention {

/// Sends nothing: K,V stay where they are, under the names of other ranks.
class SilentTransport : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Exchange&) override {}
  void finish() override {}
};

class SilentAllToAll : public AllToAllAdapter {
 public:
  using AllToAllAdapter::AllToAllAdapter;
  void exchange(const Pieces&) override {}
};

/// Begins a hop in finish(): nothing travels while the rank computes.
class SequentialTransport : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Exchange& exchange) override { pending_.start(exchange); }
  void finish() override {
    TransportAdapter::start(pending_.finish());
    TransportAdapter::finish();
  }
  void drain() override {
    pending_.require_idle();
    TransportAdapter::drain();
  }

 private:
  PendingExchange pending_;
};

/// Other links, with transports in an adapter.
template <class Adapter>
class AdaptedLinks : public Links {
 public:
  explicit AdaptedLinks(Links& links) : links_(links) {}
  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override {
    return std::make_unique<Adapter>(links_.transport(channel, most_bytes));
  }
  [[nodiscard]] AllToAll& ring() override { return links_.ring(); }
  [[nodiscard]] AllToAll& ulysses() override { return links_.ulysses(); }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override { return links_.group(axis); }
  void progress() override { links_.progress(); }

 private:
  Links& links_;
};

class SilentLinks : public AdaptedLinks<SilentTransport> {
 public:
  explicit SilentLinks(Links& links) : AdaptedLinks(links), ring_(links.ring()) {}
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
