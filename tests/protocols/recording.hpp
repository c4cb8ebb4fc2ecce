// Transports and engines that record what a ring does, and the runs of a ring with them.
#pragma once

#include <cmath>
#include <functional>
#include <utility>

#include "protocols/trace.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"
#include "ring_attention/ring/transports/adapter.hpp"

namespace ring_attention::test {

/// Records the memory that a hop of a transport borrows, and its messages as OddEvenTransport sends them, inside
/// finish(): the order of calls that gets through with those gets through with any.
class Recorded : public TransportAdapter {
 public:
  Recorded(Trace& trace, int channel, std::unique_ptr<Transport> transport)
      : TransportAdapter(std::move(transport)), trace_(trace), channel_(channel) {}

  void start(const Hop& hop) override {
    hop_ = hop;
    lend(Side::receive, hop.receive);
    lend(Side::send, hop.send);
    TransportAdapter::start(hop);
  }
  void finish() override {
    TransportAdapter::finish();
    const bool even = ring().rank % 2 == 0;
    if (even) messages(Side::send);
    messages(Side::receive);
    if (!even) messages(Side::send);
    trace_.push_back({.act = Act::barrier});
  }

 private:
  [[nodiscard]] bool empty(Side side) const {
    return side == Side::send ? hop_.send.empty() : hop_.receive.empty();
  }
  void lend(Side side, std::span<const std::byte> memory) {
    if (empty(side)) return;
    trace_.push_back({Act::lend, side, channel_, memory.data(), memory.size()});
  }
  void messages(Side side) {
    if (empty(side)) return;
    for (const Act act : {Act::post, Act::wait, Act::give_back}) trace_.push_back({act, side, channel_});
  }

  Trace& trace_;
  int channel_;
  Hop hop_;
};

/// A transport that moves nothing: for a ring that would deadlock. Its calls are recorded all the same.
class Nowhere : public Transport {
 public:
  explicit Nowhere(const Ring& ring) : ring_(ring) {}
  [[nodiscard]] Ring ring() const override { return ring_; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void start(const Hop&) override {}
  void finish() override {}
  void drain() override {}

 private:
  Ring ring_;
  TransportStatistics statistics_;
};

/// A ring whose numbers are labels: every element of K and V is the rank that owns them.
struct LabelledRing {
  Mask mask = {};
  Index tokens = 2;  // a rank
  Index dim = 3;
  bool moves = true;  // false: labels count for nothing

  [[nodiscard]] Placement placement(int ranks) const {
    return {PlacementKind::contiguous, ranks * tokens, ranks};
  }
  [[nodiscard]] Shape shape(int ranks) const { return {1, 1, ranks * tokens, dim}; }
  [[nodiscard]] bool needs(int rank, int owner, int ranks) const {
    const Placement all = placement(ranks);
    return mask.coverage(all.ranges(rank).front(), all.ranges(owner).front()) != Coverage::none;
  }
  [[nodiscard]] KvParcel<double> parcel(const Ring& at) const {
    KvParcel<double> kv(shape(at.size), placement(at.size), at.rank, host_memory(),
                        kv_hops(mask, placement(at.size), placement(at.size)));
    std::ranges::fill(kv.elements(), at.rank);
    return kv;
  }
  [[nodiscard]] KvParcel<double> gradients(const Ring& at) const {
    return KvParcel<double>(shape(at.size), placement(at.size), at.rank);
  }
};

/// The value of all elements; NaN when they differ.
inline double label_of(std::span<const double> elements) {
  for (const double x : elements)
    if (x != elements.front()) return std::nan("");
  return elements.front();
}

/// Records with what a rank computes, when a compute begins and when it ends.
struct RecordedComputes {
  Trace& trace;
  LabelledRing problem;
  Ring at;
  int step = 0;

  /// Does this rank need the K,V of this step?
  [[nodiscard]] bool needed() const { return problem.needs(at.rank, at.owner(step), at.size); }
  void begin(const KeyValue<double>& kv) { record(Act::begin, kv); }
  void end(const KeyValue<double>& kv) {
    record(Act::end, kv);
    ++step;
  }
  void compute(const KeyValue<double>& kv, const Progress& progress) {
    begin(kv);
    for (int tile = 0; tile < 3; ++tile) progress();
    end(kv);
  }
  void record(Act act, const KeyValue<double>& kv) {
    const auto memory = std::as_bytes(kv.k.elements());  // V follows K in the same message
    trace.push_back({.act = act,
                     .memory = memory.data(),
                     .bytes = 2 * memory.size(),
                     .label = label_of(kv.k.elements()),
                     .want = problem.moves && needed() ? at.owner(step) : -1.0});
  }
};

class RecordingEngine : public Engine<double> {
 public:
  RecordingEngine(Trace& trace, const LabelledRing& problem, const Ring& at)
      : computes_(trace, problem, at) {}

  void accumulate(const KeyValue<double>& kv, const Progress& progress) override {
    computes_.compute(kv, progress);
  }
  [[nodiscard]] AttentionResult<double> finish() override { return {}; }

 protected:
  RecordedComputes computes_;
};

/// What it adds to dK is 2^rank, and to dV the label of the K,V with which it computed.
class RecordingBackward : public BackwardEngine<double> {
 public:
  RecordingBackward(Trace& trace, const LabelledRing& problem, const Ring& at)
      : computes_{trace, problem, at} {}

  void accumulate(const KeyValue<double>& kv, const KeyValueGradient<double>& gradient,
                  const Progress& progress) override {
    const bool needed = computes_.needed();
    computes_.compute(kv, progress);
    if (!needed) return;
    for (double& x : gradient.k.elements()) x += std::exp2(computes_.at.rank);
    const double label = label_of(kv.v.elements());
    for (double& x : gradient.v.elements()) x += label;
  }
  [[nodiscard]] Tensor<double> finish() override { return {}; }

 private:
  RecordedComputes computes_;
};

/// Records that the gradients are complete: dK is the sum of 2^rank over the ranks that see these keys, and dV that many
/// times their owner.
inline void record_home(Trace& trace, const LabelledRing& problem, const Ring& at,
                        KvParcel<double>& gradients) {
  double all = 0, ranks = 0;
  for (int rank = 0; rank < at.size; ++rank)
    if (problem.needs(rank, at.rank, at.size)) {
      all += std::exp2(rank);
      ++ranks;
    }
  trace.push_back({.act = Act::complete, .label = gradients.owner() + 0.0, .want = at.rank + 0.0});
  if (!problem.moves) return;
  trace.push_back({.act = Act::complete, .label = label_of(gradients.k().elements()), .want = all});
  trace.push_back(
      {.act = Act::complete, .label = label_of(gradients.v().elements()), .want = ranks * at.rank});
}

/// Makes the transport of a rank for a channel.
using MakeLink = std::function<std::unique_ptr<Transport>(int channel)>;

/// One rank forward. \param loop  that of the library, or a mutant
inline void forward(Trace& trace, const LabelledRing& problem, const Ring& at, const MakeLink& make,
                    decltype(&ring_forward<double>) loop = ring_forward<double>) {
  KvParcel<double> kv = problem.parcel(at);
  RecordingEngine engine(trace, problem, at);
  const auto transport = make(0);
  loop(engine, *transport, kv);
}

/// One rank backward.
inline void backward(Trace& trace, const LabelledRing& problem, const Ring& at, const MakeLink& make,
                     decltype(&ring_backward<double>) loop = ring_backward<double>) {
  KvParcel<double> kv = problem.parcel(at);
  KvParcel<double> gradients = problem.gradients(at);
  RecordingBackward engine(trace, problem, at);
  const auto kv_transport = make(0);
  const auto gradient_transport = make(1);
  loop(engine, *kv_transport, *gradient_transport, kv, gradients);
  record_home(trace, problem, at, gradients);
}

}  // namespace ring_attention::test
