/// \file
/// The measurements of a ring of `ring-attention bench`, for any device.
#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "program/backend.hpp"
#include "program/bench/report.hpp"
#include "ring_attention/core/median.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/pending_exchange.hpp"

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

/// Computes nothing: a ring with it only sends.
template <class T, class G>
struct NoEngine {
  void accumulate(const KeyValue<T>&, const KeyValueGradient<G>&, const Progress&) {}
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
        kv_(options.kv(), placement_, ring_.rank, device.memory()) {
    device_.fill(q_.view(), [](View<Value> array) { fill_random(array, {.stream = 0}); });
    device_.set_queries(q_, placement_.ranges(ring_.rank));
    for (std::uint64_t buffer = 0; buffer < (ring_.size > 1 ? 2 : 1); ++buffer) {
      label(largest_shard());
      fill(kv_.k(), 2 * buffer + 1);
      fill(kv_.v(), 2 * buffer + 2);
    }
    if (options.backward) prepare_backward();
  }

  PlacementTimes measure_forward(Index repetitions) {
    const auto seconds = medians(
        repetitions, [&] { return only_compute(); }, [&] { return only_messages(); },
        [&](bool hops_after_steps) { return whole_ring(hops_after_steps); });
    return times_of("forward", seconds, 1, hop_bytes(), 0);
  }
  /// K,V travel as in the forward, and dK,dV one hop more.
  PlacementTimes measure_backward(Index repetitions) {
    const auto seconds = medians(
        repetitions, [&] { return only_backward_compute(); },
        [&] {
          NoEngine<Element, Value> none;
          return whole_backward(none, false).seconds;
        },
        [&](bool hops_after_steps) {
          auto engine = device_.backward_engine(*attended_, grad_out_);
          return whole_backward(engine, hops_after_steps);
        });
    return times_of("backward", seconds, 2.5, hop_bytes(), gradient_bytes());
  }

  /// The largest parcel.
  [[nodiscard]] Index hop_bytes() const {
    return 2 * options_.kv().with_seq(placement_.max_tokens()).size() *
           static_cast<Index>(sizeof(typename Device::Element));
  }

 private:
  using Value = typename Device::Value;
  using Element = typename Device::Element;
  using Memory = typename Device::Memory;
  using Attended = decltype(std::declval<Device&>().forward_engine().finish());

  struct Timing {
    double seconds, exposed;  // exposed: waited for messages
  };

  /// In the order of PlacementTimes. Each in turn.
  std::array<double, 5> medians(Index repetitions, const auto& compute, const auto& messages,
                                const auto& whole) {
    std::array<std::vector<double>, 5> seconds;
    for (Index i = -1; i < repetitions; ++i) {  // the first warms up
      const double all_steps = compute(), all_hops = messages();
      const Timing late = whole(true), early = whole(false);
      const std::array measured{all_steps, all_hops, late.seconds, early.seconds, early.exposed};
      for (std::size_t k = 0; k < measured.size() && i >= 0; ++k) seconds[k].push_back(measured[k]);
    }
    return {median(seconds[0]), median(seconds[1]), median(seconds[2]), median(seconds[3]),
            median(seconds[4])};
  }

  /// \param work  FLOP relative to the forward
  /// \param gradients  bytes of the parcel that makes a hop more
  PlacementTimes times_of(const std::string& pass, const std::array<double, 5>& seconds, double work,
                          Index kv, Index gradients) const {
    StepFlops flops = forward_flops(options_.q(), mask_, placement_, placement_);
    for (auto& rank : flops)
      for (double& step : rank) step *= work;
    PlacementTimes times{name(kind_), pass, seconds[0], seconds[1], seconds[2], seconds[3], seconds[4]};
    times.rates.flops_per_second = busiest(flops) / times.compute;
    if (ring_.size > 1)
      times.rates.bytes_per_second =
          static_cast<double>(kv * (ring_.size - 1) + gradients * ring_.size) / times.messages;
    times.model = predict(flops, static_cast<double>(kv + gradients), times.rates);
    if (ring_.size > 1 && gradients > 0) {  // the last hop of dK,dV
      const double last_hop = static_cast<double>(gradients) / times.rates.bytes_per_second;
      times.model.overlapped += last_hop;
      times.model.in_turn += last_hop;
    }
    return times;
  }

  void fill(View<Element> shard, std::uint64_t stream) {
    device_.fill(shard, [=](View<Value> array) { fill_random(array, {.stream = stream}); });
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

  /// A forward over the same keys, and dO.
  void prepare_backward() {
    device_.fill(grad_out_.view(), [](View<Value> array) { fill_random(array, {.stream = 9}); });
    sums_.emplace(options_.kv(), placement_, ring_.rank, device_.memory());
    auto engine = device_.forward_engine();
    for (int step = 0; step < ring_.steps(); ++step) {
      label(ring_.owner(step));
      engine.accumulate(kv_.current(), [&] { activity_.beat(); });
    }
    attended_.emplace(engine.finish());
  }

  double only_backward_compute() {
    activity_.enter(Phase::compute);
    auto engine = device_.backward_engine(*attended_, grad_out_);
    KvBuffer<Value, Memory>& sum = sums_->spare_buffer();
    return seconds_of(device_, comm_, [&] {
      for (int step = 0; step < ring_.steps(); ++step) {
        const int owner = ring_.owner(step);
        label(owner);
        engine.accumulate(kv_.current(), {sum.k(owner), sum.v(owner)}, [&] { activity_.beat(); });
      }
    });
  }

  Timing whole_backward(auto& engine, bool hops_after_steps) {
    label(ring_.rank);
    Watched kv = device_.transport(Watched::kv), gradients = device_.transport(Watched::gradients);
    const double seconds = seconds_of(device_, comm_, [&] {
      if (hops_after_steps) {
        SequentialTransport late_kv(kv), late_gradients(gradients);
        ring_backward(engine, late_kv, late_gradients, kv_, *sums_);
      } else {
        ring_backward(engine, kv, gradients, kv_, *sums_);
      }
    });
    return {seconds,
            max_over_ranks(comm_, kv.statistics().exposed_seconds + gradients.statistics().exposed_seconds)};
  }

  /// The largest parcel of dK,dV.
  [[nodiscard]] Index gradient_bytes() const {
    return hop_bytes() / static_cast<Index>(sizeof(Element)) * static_cast<Index>(sizeof(Value));
  }

  Device& device_;
  const Communicator& comm_;
  const BenchOptions& options_;
  PlacementKind kind_;
  const Mask& mask_;
  Activity& activity_;
  Ring ring_{comm_.rank(), comm_.size()};
  Placement placement_{kind_, options_.seq, comm_.size()};
  typename Memory::template Array<typename Device::Input> q_{
      options_.q().with_seq(placement_.tokens(comm_.rank()))};
  KvParcel<Element, Memory> kv_;
  // of the backward
  typename Memory::template Array<typename Device::Input> grad_out_{options_.backward ? q_.shape() : Shape{}};
  std::optional<KvParcel<Value, Memory>> sums_;
  std::optional<Attended> attended_;
};

}  // namespace ring_attention
