/// \file
/// The measurements of `ring-attention bench`, for any device.
///
/// A Device says where arrays live and what computes. It has the types `Element` of K,V and `Memory` of parcels, and
/// - `begin(q, scoring, runs)`: an engine that has begun on random queries, which the device keeps;
/// - `memory()`: where parcels live; `fill(elements, dim)`: rows of random numbers there;
/// - `require_memory(comm, q_shard, kv_shard)`: all ranks end together when one cannot have it;
/// - `link(comm, most_bytes)`: a transport for parcels of at most so many bytes;
/// - `synchronize()`: returns when all that was enqueued is done.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

#include "ring_attention/app/bench_report.hpp"
#include "ring_attention/core/median.hpp"
#include "ring_attention/ring/activity.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention {

/// A transport that begins a hop when the ring asks for its end: nothing travels while the rank computes.
template <Transport Link>
class InTurn {
 public:
  explicit InTurn(Link& link) : link_(link) {}

  [[nodiscard]] Ring ring() const { return link_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return link_.statistics(); }
  void start(const Exchange& exchange) { pending_.start(exchange); }
  void progress() {}
  void computed() { link_.computed(); }
  void finish() {
    link_.start(pending_.finish());
    link_.finish();
  }
  void drain() {
    pending_.require_idle();
    link_.drain();
  }

 private:
  Link& link_;
  PendingExchange pending_;
};

/// One placement of one problem on all ranks. Every function is collective and returns the seconds of the slowest rank.
template <class Device>
class RingBench {
 public:
  RingBench(Device& device, const Communicator& comm, const BenchOptions& options, Layout layout,
            Activity& activity)
      : device_(device),
        comm_(comm),
        ring_{comm.rank(), comm.size()},
        layout_(layout),
        q_(options.q()),
        kv_(options.kv()),
        placement_(layout, options.seq, comm.size()),
        activity_(activity) {
    scoring_.scale = 1 / std::sqrt(static_cast<double>(q_.dim));
    if (options.causal) scoring_.mask = Mask::causal();
  }

  PlacementTimes measure(Index repetitions) {
    std::vector<double> compute, messages, in_turn, overlapped, exposed;
    for (Index i = -1; i < repetitions; ++i) {  // the first warms up
      const double all_steps = only_compute(), all_hops = only_messages();
      const Timing late = whole_ring(true), early = whole_ring(false);
      if (i < 0) continue;
      compute.push_back(all_steps);
      messages.push_back(all_hops);
      in_turn.push_back(late.seconds);
      overlapped.push_back(early.seconds);
      exposed.push_back(early.exposed);
    }
    const StepFlops flops = forward_flops(q_, scoring_.mask, placement_, placement_);
    PlacementTimes times{name(layout_),
                         median(compute),
                         median(messages),
                         median(in_turn),
                         median(overlapped),
                         median(exposed),
                         {},
                         {}};
    times.rates.flops_per_second = busiest(flops) / times.compute;
    times.rates.bytes_per_second =
        ring_.size > 1 ? static_cast<double>(hop_bytes() * (ring_.size - 1)) / times.messages : 0;
    times.model = predict(flops, static_cast<double>(hop_bytes()), times.rates);
    return times;
  }

  /// The largest parcel.
  [[nodiscard]] Index hop_bytes() const {
    return 2 * kv_.with_seq(placement_.max_tokens()).size() *
           static_cast<Index>(sizeof(typename Device::Element));
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Element = typename Device::Element;

  struct Timing {
    double seconds, exposed;  // exposed: waited for messages
  };

  /// This rank's K,V, random.
  [[nodiscard]] auto random_parcel() const {
    KvParcel<Element, typename Device::Memory> kv(kv_, placement_, ring_.rank, device_.memory());
    device_.fill(kv.elements(), kv_.dim);
    return kv;
  }
  /// Room for the K,V of any rank, random: of unequal shards the largest fills it.
  [[nodiscard]] auto random_buffer() const {
    KvBuffer<Element, typename Device::Memory> kv(kv_, placement_, device_.memory());
    int largest = 0;
    while (placement_.tokens(largest) < placement_.max_tokens()) ++largest;
    device_.fill(kv.elements(largest), kv_.dim);
    return kv;
  }

  template <class Work>
  [[nodiscard]] double seconds_of(Work work) const {
    device_.synchronize();
    barrier(comm_);
    const auto begin = Clock::now();
    work();
    device_.synchronize();
    return max_over_ranks(comm_, std::chrono::duration<double>(Clock::now() - begin).count());
  }

  double only_compute() {
    activity_.enter(Phase::compute);
    auto engine = device_.begin(q_, scoring_, placement_.runs(ring_.rank));
    auto room = random_buffer();
    return seconds_of([&] {
      for (int step = 0; step < ring_.steps(); ++step) {
        const int owner = ring_.owner(step);
        engine.accumulate({room.k(owner), room.v(owner), placement_.runs(owner)}, [&] { activity_.beat(); });
      }
    });
  }

  double only_messages() {
    auto kv = random_parcel();
    auto link = device_.link(comm_, hop_bytes());
    return seconds_of([&] {
      for (int step = 0; step + 1 < ring_.steps(); ++step) {
        activity_.enter(Phase::exchange, step, ring_.prev());
        link.start(kv.exchange(ring_.owner(step + 1)));
        link.computed();
        link.finish();
        kv.advance();
      }
      link.drain();
    });
  }

  Timing whole_ring(bool hops_after_steps) {
    auto engine = device_.begin(q_, scoring_, placement_.runs(ring_.rank));
    auto kv = random_parcel();
    auto link = device_.link(comm_, hop_bytes());
    const double seconds = seconds_of([&] {
      if (hops_after_steps) {
        InTurn late(link);
        ring_forward(engine, late, kv, activity_);
      } else {
        ring_forward(engine, link, kv, activity_);
      }
    });
    return {seconds, max_over_ranks(comm_, link.statistics().exposed_seconds)};
  }

  Device& device_;
  const Communicator& comm_;
  Ring ring_;
  Layout layout_;
  Shape q_, kv_;  // global
  Placement placement_;
  Activity& activity_;
  Scoring scoring_;
};

/// Every placement that makes a difference.
template <class Device>
BenchReport measure_ring(Device& device, const Communicator& comm, const BenchOptions& options,
                         Activity& activity) {
  const Index tokens = Placement(Layout::contiguous, options.seq, comm.size()).max_tokens();
  device.require_memory(comm, options.q().with_seq(tokens), options.kv().with_seq(tokens));
  BenchReport report;
  report.ranks = comm.size();
  report.element_bytes = sizeof(typename Device::Element);
  for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
    if (layout == Layout::zigzag && (!options.causal || comm.size() == 1)) continue;  // the same work
    RingBench bench(device, comm, options, layout, activity);
    report.hop_bytes = bench.hop_bytes();
    report.placements.push_back(bench.measure(options.repetitions));
  }
  return report;
}

}  // namespace ring_attention
