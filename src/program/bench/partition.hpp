/// \file
/// The measurements of `ring-attention bench` in every partition.
#pragma once

#include <optional>

#include "program/bench/ring.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/parallel/travelling_kv.hpp"

namespace ring_attention {

/// What the ranks of a partition do besides a ring: all-to-alls, or an all-gather; and the whole forward and backward.
/// Every function is collective; seconds are those of the slowest rank.
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
        all_q_(all.q()),
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

  /// Fills in the all-to-alls and the whole of the forward.
  void measure_forward(Index repetitions, PlacementTimes& times) {
    const auto only_pieces = [&] { return layout_ ? only_all_to_alls() : only_gather(); };
    measure(repetitions, times, only_pieces, [&] { return layout_ ? share_heads() : attend(q_, k_, v_); });
  }
  /// The same of the backward, after prepare_backward().
  void measure_backward(Index repetitions, PlacementTimes& times) {
    const auto only_pieces = [&] { return layout_ ? only_gradients_to_alls() : only_gradient_gather(); };
    measure(repetitions, times, only_pieces, [&] { return differentiate(); });
  }
  /// A forward, whose arrays and result the backward needs; and dO.
  void prepare_backward() {
    grad_out_ = random(all_q_, 9);
    if (layout_) {
      kept_q_ = to_heads(q_);
      kept_k_ = to_heads(k_);
      kept_v_ = to_heads(v_);
    }
    TravellingKv<Element, Memory> kv = own_kv(computed(kept_k_, k_), computed(kept_v_, v_));
    device_.set_queries(computed(kept_q_, q_), place_.shard(placement_));
    auto engine = device_.forward_engine();
    (void)travelling_forward(engine, link_, transports(), kv, beat_);
    attended_.emplace(engine.finish());
  }

  /// The compute of an all-gather; a ring's is measured by RingBench.
  double only_compute() {
    TravellingKv<Element, Memory> kv = own_kv(k_, v_);
    device_.set_queries(q_, placement_.ranges(ring().rank));
    auto engine = device_.forward_engine();
    return seconds_of(device_, comm_, [&] { all_gather_forward(engine, ring(), *kv.shards, beat_); });
  }
  double only_backward_compute() {
    TravellingKv<Element, Memory> kv = own_kv(k_, v_);
    TravellingKv<Value, Memory> sums = no_sums();
    auto engine = device_.backward_engine(*attended_, grad_out_);
    return seconds_of(device_, comm_, [&] {
      for (int step = 0; step < ring().steps(); ++step) {
        const int owner = ring().owner(step);
        engine.accumulate(kv.shards->keys(owner), {sums.shards->k(owner), sums.shards->v(owner)}, beat_);
      }
    });
  }

 private:
  using Value = typename Device::Value;
  using Input = typename Device::Input;
  using Element = typename Device::Element;
  using Memory = typename Device::Memory;
  using Attended = decltype(std::declval<Device&>().forward_engine().finish());
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

  [[nodiscard]] TravellingKv<Value, Memory> no_sums() const {
    return {!layout_, work_.kv, placement_, ring().rank, device_.memory()};
  }
  [[nodiscard]] auto transports() {
    return [this](int channel) { return device_.transport(static_cast<Watched::Channel>(channel)); };
  }
  /// The array that this rank computes with: one in the head layout, or one that it holds.
  [[nodiscard]] const Array<Input>& computed(const Array<Input>& of_heads, const Array<Input>& held) const {
    return layout_ ? of_heads : held;
  }

  /// \param only_pieces  seconds of the all-to-alls, or of the all-gather
  /// \param whole  does all, and returns the seconds that it waited for hops
  void measure(Index repetitions, PlacementTimes& times, const auto& only_pieces, const auto& whole) {
    std::vector<double> pieces, all, exposed;
    for (Index i = -1; i < repetitions; ++i) {  // the first warms up
      const TransportStatistics before = link_.statistics();
      const double moved = only_pieces(), waited = link_.statistics().exposed_seconds;
      times.all_to_all_bytes = link_.statistics().bytes_sent - before.bytes_sent;
      double hops = 0;
      const double seconds = seconds_of(device_, comm_, [&] { hops = whole(); });
      hops = max_over_ranks(comm_, hops + link_.statistics().exposed_seconds - waited);
      if (i < 0) continue;
      pieces.push_back(moved);
      all.push_back(seconds);
      exposed.push_back(hops);
    }
    times.all_to_all = median(pieces);
    times.whole = median(all);
    times.exposed = median(exposed);
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
  /// dO there; dQ, dK and dV back.
  double only_gradients_to_alls() {
    const Array<Value> dq(kept_q_.shape()), dk(kept_k_.shape());
    return seconds_of(device_, comm_, [&] {
      (void)to_heads(grad_out_);
      gradients_to_sequence(dq.view(), dk.view(), dk.view());
    });
  }
  /// K,V to all; dK,dV to their owners.
  double only_gradient_gather() {
    TravellingKv<Element, Memory> kv = own_kv(k_, v_);
    TravellingKv<Value, Memory> sums = no_sums();
    NoEngine<Element, Value> none;
    return seconds_of(device_, comm_,
                      [&] { (void)travelling_backward(none, link_, transports(), kv, sums, beat_); });
  }
  void gradients_to_sequence(View<const Value> dq, View<const Value> dk, View<const Value> dv) {
    (void)layout_->queries_to_sequence(dq);
    (void)layout_->keys_to_sequence(dk);
    (void)layout_->keys_to_sequence(dv);
  }
  [[nodiscard]] Array<Input> to_heads(const Array<Input>& array) const {
    return &array == &q_ || &array == &grad_out_ ? layout_->queries_to_heads(array.view())
                                                 : layout_->keys_to_heads(array.view());
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
    const TransportStatistics hops = travelling_forward(engine, link_, transports(), kv, beat_);
    const auto result = engine.finish();
    if (layout_) (void)layout_->queries_to_sequence(result.out.view());
    device_.synchronize();  // before memory is freed, which waits without a sign of life
    return hops.exposed_seconds;
  }
  double differentiate() {
    const Array<Input> of_heads = layout_ ? to_heads(grad_out_) : Array<Input>();
    TravellingKv<Element, Memory> kv = own_kv(computed(kept_k_, k_), computed(kept_v_, v_));
    TravellingKv<Value, Memory> sums = no_sums();
    device_.set_queries(computed(kept_q_, q_), place_.shard(placement_));
    auto engine = device_.backward_engine(*attended_, computed(of_heads, grad_out_));
    const TransportStatistics hops = travelling_backward(engine, link_, transports(), kv, sums, beat_);
    const auto dq = engine.finish();
    if (layout_) gradients_to_sequence(dq, sums.k(), sums.v());
    device_.synchronize();
    return hops.exposed_seconds;
  }

  Device& device_;
  const Communicator& comm_;
  Workload work_;
  Shape all_q_;  // of all tokens and heads
  HybridPlace place_;
  Placement placement_;
  Progress beat_;
  WatchedAllToAll link_;
  Array<Input> q_, k_, v_;                                     // as the rank holds them
  std::optional<HeadLayout<WatchedAllToAll, Memory>> layout_;  // none: an all-gather
  // of the backward; in the head layout where there is one
  Array<Input> kept_q_, kept_k_, kept_v_, grad_out_;  // but grad_out_ as the rank holds it
  std::optional<Attended> attended_;
};

/// The times of an all-gather that are not messages. \param work  FLOP relative to the forward
[[nodiscard]] inline PlacementTimes gather_times(const std::string& pass, double compute, StepFlops flops,
                                                 double work, PlacementKind kind) {
  for (auto& rank : flops)
    for (double& step : rank) step *= work;
  PlacementTimes times;
  times.placement = name(kind);
  times.pass = pass;
  times.compute = compute;
  times.rates.flops_per_second = busiest(flops) / compute;
  times.model = predict(flops, 0, times.rates);
  return times;
}

/// Adds the times of one placement to the report.
template <Backend Device>
void measure_placement(Device& device, const Communicator& comm, const BenchOptions& options,
                       const Workload& work, const HybridPlace& place, const GridLines& lines,
                       PlacementKind kind, Activity& activity, BenchReport& report) {
  std::vector<PlacementTimes> passes;  // forward, backward
  const bool gathers = options.partition() == Partition::all_gather;
  if (!gathers) {
    BenchOptions of_rank = options;  // the problem of a ring
    of_rank.heads = work.q.heads;
    of_rank.kv_heads = work.kv.heads;
    RingBench bench(device, lines.ring(), of_rank, kind, work.scoring.mask, activity);
    report.hop_bytes = bench.hop_bytes();
    passes.push_back(bench.measure_forward(options.repetitions));
    if (options.backward) passes.push_back(bench.measure_backward(options.repetitions));
  }
  if (gathers || place.ulysses.size > 1) {
    PartitionBench bench(device, comm, options, work, place, lines, kind, activity);
    const Placement placement(kind, options.seq, place.ring.size);
    const StepFlops flops =
        gathers ? forward_flops(options.q(), work.scoring.mask, placement, placement) : StepFlops();
    if (gathers) passes.push_back(gather_times("forward", bench.only_compute(), flops, 1, kind));
    bench.measure_forward(options.repetitions, passes.front());
    if (options.backward) {
      bench.prepare_backward();
      if (gathers)
        passes.push_back(gather_times("backward", bench.only_backward_compute(), flops, 2.5, kind));
      bench.measure_backward(options.repetitions, passes.back());
    }
  }
  report.placements.insert(report.placements.end(), passes.begin(), passes.end());
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
  const Index q_size = work.q.size(), kv_size = work.kv.size();
  if (place.ulysses.size > 1)
    work.besides = 2 * q_size + 4 * kv_size + (options.backward ? 4 * q_size + 4 * kv_size : 0);
  if (options.partition() == Partition::all_gather)
    work.besides = (options.backward ? 6 : 2) * kv_size * ranks;
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
