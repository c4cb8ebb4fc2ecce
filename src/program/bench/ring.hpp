/// \file
/// The measurements of `ring-attention bench`, for any device.
///
/// A Device says where arrays live and what computes. It has the types `Element` of K,V and `Memory` of parcels, and
/// - `engine(scoring)`: what computes;
/// - `memory()`: where parcels live; `fill(elements, dim, stream)`: rows of random numbers there;
/// - `require_memory(q_shard, kv_shard)`: all ranks end together when one cannot have it;
/// - `transport()`: a transport;
/// - `synchronize()`: returns when all that was enqueued is done.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>

#include "program/bench/report.hpp"
#include "program/watched.hpp"
#include "ring_attention/core/median.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention {

/// A transport that begins a hop when the ring asks for its end: nothing travels while the rank computes.
template <Transport Base>
class SequentialTransport {
 public:
  explicit SequentialTransport(Base& transport) : transport_(transport) {}

  [[nodiscard]] Ring ring() const { return transport_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return transport_.statistics(); }
  void start(const Exchange& exchange) { pending_.start(exchange); }
  void progress() {}
  void finish() {
    transport_.start(pending_.finish());
    transport_.finish();
  }
  void drain() {
    pending_.require_idle();
    transport_.drain();
  }

 private:
  Base& transport_;
  PendingExchange pending_;
};

/// One placement of one problem on all ranks. Every function is collective and returns the seconds of the slowest rank.
template <class Device>
class RingBench {
 public:
  RingBench(Device& device, const Communicator& comm, const BenchOptions& options, PlacementKind kind,
            Activity& activity)
      : device_(device),
        comm_(comm),
        ring_{comm.rank(), comm.size()},
        kind_(kind),
        placement_(kind, options.seq, comm.size()),
        activity_(activity),
        q_shape_(options.q()),
        kv_shape_(options.kv()),
        q_(q_shape_.with_seq(placement_.tokens(comm.rank()))),
        kv_(kv_shape_, placement_, largest_shard(), device.memory()) {
    scoring_.scale = 1 / std::sqrt(static_cast<double>(q_shape_.dim));
    if (options.causal) scoring_.mask = Mask::causal();
    device_.fill(q_.view().elements(), q_shape_.dim, 0);
    for (std::uint64_t buffer = 1; buffer <= (ring_.size > 1 ? 2 : 1); ++buffer) {
      device_.fill(kv_.elements(), kv_shape_.dim, buffer);
      label(largest_shard());
    }
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
    const StepFlops flops = forward_flops(q_shape_, scoring_.mask, placement_, placement_);
    PlacementTimes times{name(kind_),
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
    return 2 * kv_shape_.with_seq(placement_.max_tokens()).size() *
           static_cast<Index>(sizeof(typename Device::Element));
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Element = typename Device::Element;

  struct Timing {
    double seconds, exposed;  // exposed: waited for messages
  };

  /// A rank whose shard fills a buffer.
  [[nodiscard]] int largest_shard() const {
    int largest = 0;
    while (placement_.tokens(largest) < placement_.max_tokens()) ++largest;
    return largest;
  }
  /// From now on the parcel is that of `owner`. Nothing is sent: both of its buffers are full of random numbers, which
  /// are as good as any.
  void label(int owner) {
    if (ring_.size == 1) return;
    (void)kv_.exchange(owner);
    kv_.advance();
  }
  [[nodiscard]] auto begun_engine() {
    auto engine = device_.engine(scoring_);
    engine.begin(q_, placement_.ranges(ring_.rank));
    return engine;
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
    auto engine = begun_engine();
    return seconds_of([&] {
      for (int step = 0; step < ring_.steps(); ++step) {
        label(ring_.owner(step));
        engine.accumulate(kv_.current(), [&] { activity_.beat(); });
      }
    });
  }

  double only_messages() {
    label(ring_.rank);
    auto transport = device_.transport();
    return seconds_of([&] {
      for (int step = 0; step + 1 < ring_.steps(); ++step) {
        activity_.enter(Phase::exchange, step, ring_.prev());
        transport.start(kv_.exchange(ring_.owner(step + 1)));
        transport.finish();
        kv_.advance();
      }
      transport.drain();
    });
  }

  Timing whole_ring(bool hops_after_steps) {
    auto engine = begun_engine();
    label(ring_.rank);
    using Transport = decltype(device_.transport());
    Watched<Transport> transport(activity_, [&] { return device_.transport(); });
    const double seconds = seconds_of([&] {
      if (hops_after_steps) {
        SequentialTransport late(transport);
        ring_forward(engine, late, kv_);
      } else {
        ring_forward(engine, transport, kv_);
      }
    });
    return {seconds, max_over_ranks(comm_, transport.statistics().exposed_seconds)};
  }

  Device& device_;
  const Communicator& comm_;
  Ring ring_;
  PlacementKind kind_;
  Placement placement_;
  Activity& activity_;
  Scoring scoring_;
  Shape q_shape_, kv_shape_;  // global
  typename Device::Memory::template Array<Element> q_;
  KvParcel<Element, typename Device::Memory> kv_;
};

/// Every placement that makes a difference.
template <class Device>
BenchReport measure_ring(Device& device, const Communicator& comm, const BenchOptions& options,
                         Activity& activity) {
  const Index tokens = Placement(PlacementKind::contiguous, options.seq, comm.size()).max_tokens();
  device.require_memory(options.q().with_seq(tokens), options.kv().with_seq(tokens));
  BenchReport report;
  report.ranks = comm.size();
  report.element_bytes = sizeof(typename Device::Element);
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::zigzag}) {
    if (kind == PlacementKind::zigzag && (!options.causal || comm.size() == 1)) continue;  // the same work
    RingBench bench(device, comm, options, kind, activity);
    report.hop_bytes = bench.hop_bytes();
    report.placements.push_back(bench.measure(options.repetitions));
  }
  return report;
}

}  // namespace ring_attention
