// A transport and an engine that record what a ring does, and the runs of a ring with them.
#pragma once

#include <cmath>
#include <functional>
#include <utility>

#include "models/trace.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention::test {

/// Forwards every call to a transport, and records the memory that a hop borrows. It records the messages of a hop as
/// OddEvenTransport sends them, inside finish(): the order of calls that gets through with those gets through with any.
template <Transport Link>
class Recorded {
 public:
  template <class... Arguments>
  explicit Recorded(Trace& trace, int channel, Arguments&&... arguments)
      : trace_(trace), channel_(channel), link_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] auto ring() const { return link_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return link_.statistics(); }

  void start(const Exchange& exchange) {
    exchange_ = exchange;
    lend(Side::receive, exchange.receive);
    lend(Side::send, exchange.send);
    link_.start(exchange);
  }
  void progress() { link_.progress(); }
  void finish() {
    link_.finish();
    const bool even = ring().rank % 2 == 0;
    if (even) messages(Side::send);
    messages(Side::receive);
    if (!even) messages(Side::send);
    trace_.push_back({.act = Act::barrier});
  }
  void drain() { link_.drain(); }

 private:
  [[nodiscard]] bool empty(Side side) const {
    return side == Side::send ? exchange_.send.empty() : exchange_.receive.empty();
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
  Link link_;
  Exchange exchange_;
};

/// A transport that moves nothing: for a ring that would deadlock. Its calls are recorded all the same.
class Nowhere {
 public:
  explicit Nowhere(const Ring& ring) : ring_(ring) {}
  [[nodiscard]] Ring ring() const { return ring_; }
  [[nodiscard]] const TransportStatistics& statistics() const { return statistics_; }
  void start(const Exchange&) {}
  void progress() {}
  void finish() {}
  void drain() {}

 private:
  Ring ring_;
  TransportStatistics statistics_;
};
static_assert(Transport<Recorded<Nowhere>>);

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
    KvParcel<double> kv(shape(at.size), placement(at.size), at.rank, {},
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

/// Records with what it computes, when a compute begins and when it ends. What it adds to dK is 2^rank, and to dV the
/// label of the K,V with which it computed.
class RecordingEngine {
 public:
  RecordingEngine(Trace& trace, const LabelledRing& problem, const Ring& at)
      : trace_(trace), problem_(problem), at_(at) {}

  void accumulate(const KeyValue<double>& kv, const Progress& progress) {
    begin(kv);
    for (int tile = 0; tile < 3; ++tile) progress();
    end(kv);
  }
  void accumulate(const KeyValue<double>& kv, const KeyValueGradient<double>& gradient,
                  const Progress& progress) {
    const bool needed = problem_.needs(at_.rank, at_.owner(step_), at_.size);
    accumulate(kv, progress);
    if (!needed) return;
    for (double& x : gradient.k.elements()) x += std::exp2(at_.rank);
    const double label = label_of(kv.v.elements());
    for (double& x : gradient.v.elements()) x += label;
  }
  void begin(const KeyValue<double>& kv) { record(Act::begin, kv); }
  void end(const KeyValue<double>& kv) {
    record(Act::end, kv);
    ++step_;
  }

 private:
  void record(Act act, const KeyValue<double>& kv) {
    const auto memory = std::as_bytes(kv.k.elements());  // V follows K in the same message
    const int owner = at_.owner(step_);
    const bool counts = problem_.moves && problem_.needs(at_.rank, owner, at_.size);
    trace_.push_back({.act = act,
                      .memory = memory.data(),
                      .bytes = 2 * memory.size(),
                      .label = label_of(kv.k.elements()),
                      .want = counts ? owner : -1.0});
  }

  Trace& trace_;
  LabelledRing problem_;
  Ring at_;
  int step_ = 0;
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

/// The loops of the library; a mutant has others.
struct LibraryLoops {
  static void forward(auto& engine, auto& transport, KvParcel<double>& kv) {
    ring_forward(engine, transport, kv);
  }
  static void backward(auto& engine, auto& kv_transport, auto& gradient_transport, KvParcel<double>& kv,
                       KvParcel<double>& gradients) {
    ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
  }
};

/// One rank forward. `make(channel)` makes its transport.
template <class Loops = LibraryLoops>
void forward(Trace& trace, const LabelledRing& problem, const Ring& at, auto make) {
  KvParcel<double> kv = problem.parcel(at);
  RecordingEngine engine(trace, problem, at);
  auto&& transport = make(0);
  Loops::forward(engine, transport, kv);
}

/// One rank backward.
template <class Loops = LibraryLoops>
void backward(Trace& trace, const LabelledRing& problem, const Ring& at, auto make) {
  KvParcel<double> kv = problem.parcel(at);
  KvParcel<double> gradients = problem.gradients(at);
  RecordingEngine engine(trace, problem, at);
  auto&& kv_transport = make(0);
  auto&& gradient_transport = make(1);
  Loops::backward(engine, kv_transport, gradient_transport, kv, gradients);
  record_home(trace, problem, at, gradients);
}

}  // namespace ring_attention::test
