// The mistakes of the models (*.pml), in code.
#pragma once

#include "models/recording.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::test {

/// Swaps the buffers before the hop is over. (overlapped.pml: EARLY)
struct EarlySwap : LibraryLoops {
  static void forward(auto& engine, auto& transport, KvParcel<double>& kv) {
    const auto ring = transport.ring();
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
};

enum class Order { kv_first_on_rank_1, adds_early };

/// ring_backward with another order of its calls. (backward.pml: SWAPPED, ADDS_EARLY)
template <Order order>
struct BackwardIn : LibraryLoops {
  static void backward(auto& engine, auto& kv_transport, auto& gradient_transport, KvParcel<double>& kv,
                       KvParcel<double>& gradients) {
    const auto ring = kv_transport.ring();
    KvBuffer<double>& part = gradients.spare_buffer();
    const auto finish_kv = [&] { kv_transport.finish(); };
    const auto finish_gradients = [&] {
      gradient_transport.finish();
      gradients.advance();
    };
    const bool kv_first = order == Order::kv_first_on_rank_1 && ring.rank == 1;
    for (int step = 0; step < ring.steps(); ++step) {
      const bool last = step + 1 == ring.steps();
      const int owner = kv.owner();
      if (!last) kv_transport.start(kv.exchange(ring.owner(step + 1)));
      gradients.memory().zero(part.elements(owner));
      engine.accumulate(kv.current(), {part.k(owner), part.v(owner)}, [] {});
      const auto add = [&] {
        gradients.memory().add(gradients.elements(), std::span<const double>(part.elements(owner)));
      };
      if (order == Order::adds_early) add();
      if (!last && kv_first) finish_kv();
      if (step > 0) finish_gradients();
      if (order != Order::adds_early) add();
      if (ring.size > 1) gradient_transport.start(gradients.exchange(ring.owner(step + 1)));
      if (!last && !kv_first) finish_kv();
      if (!last) kv.advance();
    }
    if (ring.size > 1) finish_gradients();
  }
};

/// The receiver expects one hop less than the sender makes. (topology.pml: RECEIVER_MISCOUNTS)
class Miscounts : public Recorded<Nowhere> {
 public:
  Miscounts(Trace& trace, const Ring& ring, std::vector<int> hops)
      : Recorded(trace, 0, ring), hops_(std::move(hops)) {}

  void start(Exchange exchange) {
    ++hop_;
    if (hop_ + 1 > hops_[static_cast<std::size_t>(ring().owner(hop_))]) exchange.receive = {};
    Recorded::start(exchange);
  }

 private:
  std::vector<int> hops_;
  int hop_ = 0;
};

/// Computes when it is told to wait, as a stream of a GPU may do: K,V must stay untouched until then.
class LateEngine {
 public:
  LateEngine(Trace& trace, const LabelledRing& problem, const Ring& at) : engine_(trace, problem, at) {}

  void accumulate(const KeyValue<double>& kv, const Progress& progress) {
    wait();
    engine_.begin(kv);
    progress();
    late_ = [this, kv] { engine_.end(kv); };
  }
  void wait() {
    if (late_) std::exchange(late_, {})();
  }

 private:
  RecordingEngine engine_;
  std::function<void()> late_;
};

/// A hop begins when the computes before it have ended. (enqueued.pml; `waits` false: NO_READY)
class AfterComputes : public Recorded<LoopbackTransport> {
 public:
  AfterComputes(bool waits, LateEngine& engine, Trace& trace, LoopbackWorld& world, int rank)
      : Recorded(trace, 0, world, rank), waits_(waits), engine_(engine) {}

  void start(const Exchange& exchange) {
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

  void start(const Exchange& exchange) {
    end_hop();
    LoopbackTransport::start(exchange);
    under_way_ = true;
  }
  void finish() {}
  void drain() {
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
