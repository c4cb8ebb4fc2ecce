/// \file
/// The measurements of a ring of `ring-attention bench`, for any device.
#pragma once

#include <array>
#include <chrono>
#include <cmath>

#include "program/backend.hpp"
#include "program/bench/report.hpp"
#include "ring_attention/core/median.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention {

/// A transport that begins a hop in finish(): nothing travels while the rank computes.
class SequentialTransport {
 public:
  explicit SequentialTransport(Watched& transport) : transport_(transport) {}

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
  Watched& transport_;
  PendingExchange pending_;
};

/// Seconds of the slowest rank for `work`, which all ranks begin together. Collective.
double seconds_of(const Backend auto& device, const Communicator& comm, const auto& work) {
  device.synchronize();
  barrier(comm);
  const auto begin = std::chrono::steady_clock::now();
  work();
  device.synchronize();
  return max_over_ranks(comm,
                        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

/// One placement of one problem on all ranks. Every function is collective and returns the seconds of the slowest rank.
template <Backend Device>
class RingBench {
 public:
  RingBench(Device& device, const Communicator& comm, const BenchOptions& options, PlacementKind kind,
            const Mask& mask, Activity& activity)
      : device_(device),
        comm_(comm),
        options_(options),
        kind_(kind),
        mask_(mask),
        activity_(activity),
        kv_(options.kv(), placement_, largest_shard(), device.memory()) {
    fill_random(q_.view(), {.stream = 0});
    device_.set_queries(q_, placement_.ranges(ring_.rank));
    for (std::uint64_t buffer = 0; buffer < (ring_.size > 1 ? 2 : 1); ++buffer) {
      fill(kv_.k(), 2 * buffer + 1);
      fill(kv_.v(), 2 * buffer + 2);
      label(largest_shard());
    }
  }

  PlacementTimes measure(Index repetitions) {
    std::array<std::vector<double>, 5> seconds;  // in the order of PlacementTimes
    for (Index i = -1; i < repetitions; ++i) {   // the first warms up
      const double all_steps = only_compute(), all_hops = only_messages();
      const Timing late = whole_ring(true), early = whole_ring(false);
      const std::array measured{all_steps, all_hops, late.seconds, early.seconds, early.exposed};
      for (std::size_t k = 0; k < measured.size() && i >= 0; ++k) seconds[k].push_back(measured[k]);
    }
    const StepFlops flops = forward_flops(options_.q(), mask_, placement_, placement_);
    PlacementTimes times{name(kind_),        median(seconds[0]), median(seconds[1]),
                         median(seconds[2]), median(seconds[3]), median(seconds[4])};
    times.rates.flops_per_second = busiest(flops) / times.compute;
    times.rates.bytes_per_second =
        ring_.size > 1 ? static_cast<double>(hop_bytes() * (ring_.size - 1)) / times.messages : 0;
    times.model = predict(flops, static_cast<double>(hop_bytes()), times.rates);
    return times;
  }

  /// The largest parcel.
  [[nodiscard]] Index hop_bytes() const {
    return 2 * options_.kv().with_seq(placement_.max_tokens()).size() *
           static_cast<Index>(sizeof(typename Device::Element));
  }

 private:
  using Element = typename Device::Element;

  struct Timing {
    double seconds, exposed;  // exposed: waited for messages
  };

  void fill(View<Element> shard, std::uint64_t stream) {
    device_.fill(shard, [=](View<typename Device::Value> array) { fill_random(array, {.stream = stream}); });
  }
  /// A rank whose shard fills a buffer.
  [[nodiscard]] int largest_shard() const {
    int largest = 0;
    while (placement_.tokens(largest) < placement_.max_tokens()) ++largest;
    return largest;
  }
  /// From now on the parcel is that of `owner`. Nothing is sent: both of its buffers hold random numbers.
  void label(int owner) {
    if (ring_.size == 1) return;
    (void)kv_.exchange(owner);
    kv_.advance();
  }

  double only_compute() {
    activity_.enter(Phase::compute);
    auto engine = device_.forward_engine();
    return seconds_of(device_, comm_, [&] {
      for (int step = 0; step < ring_.steps(); ++step) {
        label(ring_.owner(step));
        engine.accumulate(kv_.current(), [&] { activity_.beat(); });
      }
    });
  }

  double only_messages() {
    label(ring_.rank);
    Watched transport = device_.transport(Watched::kv);
    return seconds_of(device_, comm_, [&] {
      for (int step = 0; step + 1 < ring_.steps(); ++step) {
        transport.start(kv_.exchange(ring_.owner(step + 1)));
        transport.finish();
        kv_.advance();
      }
      transport.drain();
    });
  }

  Timing whole_ring(bool hops_after_steps) {
    auto engine = device_.forward_engine();
    label(ring_.rank);
    Watched transport = device_.transport(Watched::kv);
    const double seconds = seconds_of(device_, comm_, [&] {
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
  const BenchOptions& options_;
  PlacementKind kind_;
  const Mask& mask_;
  Activity& activity_;
  Ring ring_{comm_.rank(), comm_.size()};
  Placement placement_{kind_, options_.seq, comm_.size()};
  Tensor<typename Device::Value> q_{options_.q().with_seq(placement_.tokens(comm_.rank()))};
  KvParcel<Element, typename Device::Memory> kv_;
};

}  // namespace ring_attention
