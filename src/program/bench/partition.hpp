/// \file
/// The measurements of `ring-attention bench` in every partition.
#pragma once

#include <optional>

#include "program/bench/ring.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/parallel/travelling_kv.hpp"

namespace ring_attention {

/// What the ranks of a partition do besides a ring: all-to-alls, or an all-gather; and the whole forward. Every function
/// is collective and returns the seconds of the slowest rank.
template <Backend Device>
class PartitionBench {
 public:
  /// \param all   what was asked for
  /// \param work  what a rank computes
  PartitionBench(Device& device, const Communicator& comm, const BenchOptions& all, const Workload& work,
                 const HybridPlace& place, const GridLines& lines, PlacementKind kind, Activity& activity)
      : device_(device),
        comm_(comm),
        work_(work),
        place_(place),
        placement_(kind, all.seq, place.ring.size),
        beat_([&activity] { activity.beat(); }),
        link_(device.all_to_all(gathers(place) ? lines.ring() : lines.ulysses())),
        q_(random(all.q(), 0)),
        k_(random(all.kv(), 1)),
        v_(random(all.kv(), 2)) {
    if (!gathers(place))
      layout_.emplace(link_, place, placement_, placement_, all.heads, all.kv().heads, device.memory());
  }

  /// Fills in the all-to-alls and the whole.
  void measure(Index repetitions, PlacementTimes& times) {
    std::vector<double> pieces, whole, exposed;
    for (Index i = -1; i < repetitions; ++i) {  // the first warms up
      const double moved = only_pieces();
      const auto [seconds, waited] = whole_forward();
      if (i < 0) continue;
      pieces.push_back(moved);
      whole.push_back(seconds);
      exposed.push_back(waited);
    }
    times.all_to_all = median(pieces);
    times.whole = median(whole);
    times.exposed = median(exposed);
    times.all_to_all_bytes = bytes_;
  }

  /// The compute of an all-gather; a ring's is measured by RingBench.
  double only_compute() {
    TravellingKv<Element, Memory> kv = own_kv(k_, v_);
    device_.set_queries(q_, placement_.ranges(ring().rank));
    auto engine = device_.forward_engine();
    return seconds_of(device_, comm_, [&] { all_gather_forward(engine, ring(), *kv.shards, beat_); });
  }

 private:
  using Value = typename Device::Value;
  using Input = typename Device::Input;
  using Element = typename Device::Element;
  using Memory = typename Device::Memory;
  template <class T>
  using Array = typename Memory::template Array<T>;

  static bool gathers(const HybridPlace& place) { return place.ulysses.size == 1; }
  [[nodiscard]] Ring ring() const { return place_.ring.ring(place_.rank); }

  /// Where the device computes.
  [[nodiscard]] Array<Input> random(const Shape& all, std::uint64_t stream) const {
    Array<Input> held(all.with_seq(count(place_.slice(placement_))));
    device_.fill(held.view(), [=](View<Value> array) { fill_random(array, {.stream = stream}); });
    return held;
  }
  [[nodiscard]] TravellingKv<Element, Memory> own_kv(const Array<Input>& k, const Array<Input>& v) const {
    TravellingKv<Element, Memory> kv(!layout_, work_.kv, placement_, ring().rank, device_.memory());
    device_.fill(kv.k(), k);
    device_.fill(kv.v(), v);
    return kv;
  }

  double only_pieces() {
    const Index before = link_.statistics().bytes_sent;
    const double seconds = layout_ ? only_all_to_alls() : only_gather();
    bytes_ = link_.statistics().bytes_sent - before;
    return seconds;
  }
  double only_all_to_alls() {
    const Array<Value> out(work_.q.with_seq(count(place_.shard(placement_))));
    return seconds_of(device_, comm_, [&] {
      for (const auto* array : {&q_, &k_, &v_}) (void)to_heads(*array);
      (void)layout_->queries_to_sequence(out.view());
    });
  }
  double only_gather() {
    TravellingKv<Element, Memory> kv = own_kv(k_, v_);
    return seconds_of(device_, comm_, [&] { all_gather(link_, *kv.shards); });
  }
  [[nodiscard]] Array<Input> to_heads(const Array<Input>& array) const {
    return &array == &q_ ? layout_->queries_to_heads(array.view()) : layout_->keys_to_heads(array.view());
  }

  struct Timing {
    double seconds, exposed;  // exposed: waited for messages
  };
  Timing whole_forward() {
    const double before = link_.statistics().exposed_seconds;
    double hops = 0;
    const double seconds =
        seconds_of(device_, comm_, [&] { hops = layout_ ? share_heads() : attend(q_, k_, v_); });
    return {seconds, max_over_ranks(comm_, hops + link_.statistics().exposed_seconds - before)};
  }
  double share_heads() {
    const Array<Input> q = to_heads(q_), k = to_heads(k_), v = to_heads(v_);
    return attend(q, k, v);
  }
  /// \returns seconds that it waited for hops
  double attend(const Array<Input>& q, const Array<Input>& k, const Array<Input>& v) {
    TravellingKv<Element, Memory> kv = own_kv(k, v);
    device_.set_queries(q, place_.shard(placement_));
    auto engine = device_.forward_engine();
    const auto transports = [&](int channel) {
      return device_.transport(static_cast<Watched::Channel>(channel));
    };
    const TransportStatistics hops = travelling_forward(engine, link_, transports, kv, beat_);
    const auto result = engine.finish();
    if (layout_) (void)layout_->queries_to_sequence(result.out.view());
    device_.synchronize();  // before memory is freed, which waits without a sign of life
    return hops.exposed_seconds;
  }

  Device& device_;
  const Communicator& comm_;
  Workload work_;
  HybridPlace place_;
  Placement placement_;
  Progress beat_;
  WatchedAllToAll link_;
  Array<Input> q_, k_, v_;                                     // as the rank holds them
  std::optional<HeadLayout<WatchedAllToAll, Memory>> layout_;  // none: an all-gather
  Index bytes_ = 0;
};

/// Adds the times of one placement to the report.
template <Backend Device>
void measure_placement(Device& device, const Communicator& comm, const BenchOptions& options,
                       const Workload& work, const HybridPlace& place, const GridLines& lines,
                       PlacementKind kind, Activity& activity, BenchReport& report) {
  PlacementTimes times;
  BenchOptions of_rank = options;  // the problem of a ring
  of_rank.heads = work.q.heads;
  of_rank.kv_heads = work.kv.heads;
  if (options.partition() != Partition::all_gather) {
    RingBench bench(device, lines.ring(), of_rank, kind, work.scoring.mask, activity);
    report.hop_bytes = bench.hop_bytes();
    times = bench.measure_forward(options.repetitions);
    if (place.ulysses.size == 1) {
      report.placements.push_back(times);
      if (options.backward) report.placements.push_back(bench.measure_backward(options.repetitions));
      return;
    }
  }
  PartitionBench bench(device, comm, options, work, place, lines, kind, activity);
  if (options.partition() == Partition::all_gather) {
    const Placement placement(kind, options.seq, comm.size());
    const StepFlops flops = forward_flops(options.q(), work.scoring.mask, placement, placement);
    times.placement = name(kind);
    times.compute = bench.only_compute();
    times.rates.flops_per_second = busiest(flops) / times.compute;
    times.model = predict(flops, 0, times.rates);
  }
  bench.measure(options.repetitions, times);
  report.placements.push_back(times);
}

/// Measures each placement in which ranks get different work. Collective.
/// \throws AgreedError when the ranks or heads cannot be divided so
template <Backend Device>
BenchReport measure(const Communicator& comm, const BenchOptions& options, Activity& activity) {
  const HybridPlace place = agreed_place(comm, options);
  require_shareable_heads(comm, place, options.heads, options.kv().heads);
  const GridLines lines(comm, place);
  const int ranks = place.ring.size;
  const Index tokens = Placement(PlacementKind::contiguous, options.seq, ranks).max_tokens();
  Workload work{options.q().with_seq(tokens), options.kv().with_seq(tokens), {}, options.backward};
  work.q.heads /= place.ulysses.size;
  work.kv.heads = std::max<Index>(1, work.kv.heads / place.ulysses.size);
  if (place.ulysses.size > 1) work.besides = 2 * work.q.size() + 4 * work.kv.size();
  if (options.partition() == Partition::all_gather) work.besides = 2 * ranks * work.kv.size();
  work.scoring.scale = 1 / std::sqrt(static_cast<double>(options.dim));
  if (options.causal) work.scoring.mask = Mask::causal();
  Device device({comm, lines.ring(), options, activity, work});
  device.require_memory();
  BenchReport report;
  report.ranks = comm.size();
  report.ulysses = place.ulysses.size;
  report.element_bytes = sizeof(typename Device::Element);
  report.backend = device.description();
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::zigzag}) {
    if (kind == PlacementKind::zigzag && (!options.causal || ranks == 1)) continue;  // the same work
    measure_placement(device, comm, options, work, place, lines, kind, activity, report);
  }
  return report;
}

}  // namespace ring_attention
