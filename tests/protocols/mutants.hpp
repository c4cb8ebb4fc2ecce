// The mistakes of the models (*.pml), in code.
#pragma once

#include "protocols/recording.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::test {

/// Swaps the buffers before the hop is over. (overlapped.pml: EARLY)
inline void swaps_early(Engine<double>& engine, Transport& transport, KvParcel<double>& kv) {
  const Ring ring = transport.ring();
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    if (!last) {
      transport.start(kv.exchange(ring.owner(step + 1)));
      kv.advance();
    }
    engine.accumulate(kv.current(), [&] { transport.progress(); });
    if (!last) transport.finish();
  }
  transport.drain();
}

enum class Mistake { kv_first_on_rank_1, adds_early };

/// ring_backward with a mistake. (backward.pml: SWAPPED, ADDS_EARLY)
template <Mistake mistake>
void backward_with(BackwardEngine<double>& engine, Transport& kv_transport, Transport& gradient_transport,
                   KvParcel<double>& kv, KvParcel<double>& gradients) {
  const Ring ring = kv_transport.ring();
  KvBuffer<double>& part = gradients.spare_buffer();
  const auto finish_gradients = [&] {
    gradient_transport.finish();
    gradients.advance();
  };
  const bool kv_first = mistake == Mistake::kv_first_on_rank_1 && ring.rank == 1;
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = kv.owner();
    if (!last) kv_transport.start(kv.exchange(ring.owner(step + 1)));
    gradients.memory().zero(part.elements(owner));
    engine.accumulate(kv.current(), {part.k(owner), part.v(owner)}, [] {});
    const auto add = [&] {
      gradients.memory().add(gradients.elements(), std::span<const double>(part.elements(owner)));
    };
    if (mistake == Mistake::adds_early) add();
    if (!last && kv_first) kv_transport.finish();
    if (step > 0) finish_gradients();
    if (mistake != Mistake::adds_early) add();
    if (step < ring.gradient_hops()) gradient_transport.start(gradients.exchange(ring.owner(step + 1)));
    if (!last && !kv_first) kv_transport.finish();
    if (!last) kv.advance();
  }
  if (ring.gradient_hops() == ring.steps()) finish_gradients();
}

/// The receiver expects one hop less than the sender makes. (topology.pml: RECEIVER_MISCOUNTS)
class Miscounts : public Recorded {
 public:
  Miscounts(Trace& trace, const Ring& ring, std::vector<int> hops)
      : Recorded(trace, 0, std::make_unique<Nowhere>(ring)), hops_(std::move(hops)) {}

  void start(const Hop& exchange) override {
    ++hop_;
    Hop hop = exchange;
    if (hop_ + 1 > hops_[static_cast<std::size_t>(ring().owner(hop_))]) hop.receive = {};
    Recorded::start(hop);
  }

 private:
  std::vector<int> hops_;
  int hop_ = 0;
};

/// Computes when it is told to wait, as a stream of a GPU may do: K,V must stay untouched until then.
class LateEngine : public RecordingEngine {
 public:
  using RecordingEngine::RecordingEngine;

  void accumulate(const KeyValue<double>& kv, const Progress& progress) override {
    wait();
    computes_.begin(kv);
    progress();
    late_ = [this, kv] { computes_.end(kv); };
  }
  void wait() {
    if (late_) std::exchange(late_, {})();
  }

 private:
  std::function<void()> late_;
};

/// A hop begins when the computes before it have ended. (enqueued.pml; `waits` false: NO_READY)
class AfterComputes : public Recorded {
 public:
  AfterComputes(bool waits, LateEngine& engine, Trace& trace, LoopbackWorld& world, int rank)
      : Recorded(trace, 0, std::make_unique<LoopbackTransport>(world, rank)),
        waits_(waits),
        engine_(engine) {}

  void start(const Hop& exchange) override {
    if (waits_) engine_.wait();
    Recorded::start(exchange);
  }

 private:
  bool waits_;
  LateEngine& engine_;
};

/// finish() returns at once, and the hop ends before the next one begins. (enqueued.pml: NO_ARRIVED)
class FinishesLate : public LoopbackTransport {
 public:
  using LoopbackTransport::LoopbackTransport;

  void start(const Hop& exchange) override {
    end_hop();
    LoopbackTransport::start(exchange);
    under_way_ = true;
  }
  void finish() override {}
  void drain() override {
    end_hop();
    LoopbackTransport::drain();
  }

 private:
  void end_hop() {
    if (under_way_) LoopbackTransport::finish();
    under_way_ = false;
  }
  bool under_way_ = false;
};

}  // namespace ring_attention::test
