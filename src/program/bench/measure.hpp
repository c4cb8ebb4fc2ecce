/// \file
/// The measurements of `ring-attention bench`, for every device and partition.
#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "cli/median.hpp"
#include "program/backend.hpp"
#include "program/bench/parts.hpp"
#include "program/bench/report.hpp"
#include "program/host_memory.hpp"
#include "program/placement_choice.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/observed.hpp"
#include "ring_attention/parallel/ring/kv_ring.hpp"

namespace ring_attention {

/// One placement of one problem on all ranks: what `run` does with random arrays, and its parts. The parts are the same
/// calls with links that send nothing or send late, and with an engine that computes nothing. Every function is collective;
/// seconds are those of the slowest rank.
template <class Input, class T>
class PlacementBench {
 public:
  PlacementBench(Backend<Input, T>& backend, const Communicator& comm, const BenchOptions& options,
                 const SharedAttention& shared)
      : device_(*backend.device),
        links_(*backend.links),
        comm_(comm),
        options_(options),
        shared_(shared),
        gathers_(options.all_gathers()),
        silent_(links_, backend.observers->all()),
        late_(links_, backend.observers->all()),
        of_compute_(backend.observers->all()),
        whole_(device_, links_, shared, backend.observers->all()),
        compute_(device_, silent_, shared, {&of_compute_}),
        in_turn_(device_, late_, shared, {&of_compute_}),
        layout_(whole_.layout()),
        held_q_(random(shared.q, 0)),
        held_k_(random(shared.kv, 1)),
        held_v_(random(shared.kv, 2)),
        q_(layout_.to_heads(Held::queries, held_q_.view())),
        k_(layout_.to_heads(Held::keys, held_k_.view())),
        v_(layout_.to_heads(Held::keys, held_v_.view())) {}

  [[nodiscard]] PlacementTimes measure_forward() {
    const auto begin = [&](Attention& attention) { return attention.begin_forward(q_, filled_kv()); };
    const auto none = [] { return std::make_unique<NoEngine<T>>(); };
    const Shape q = layout_.shares_heads() ? q_.view().shape() : Shape{};  // else nothing is exchanged
    const auto out = device_.memory().template array<Value>(q);
    const auto pieces = [&] {
      (void)layout_.to_heads(Held::queries, held_q_.view());
      (void)layout_.to_heads(Held::keys, held_k_.view());
      (void)layout_.to_heads(Held::keys, held_v_.view());
      (void)layout_.to_sequence(Held::queries, out.view());
    };
    return measure("forward", 1, begin, none, pieces,
                   [&] { (void)whole_.forward(held_q_, held_k_, held_v_); });
  }

  /// K,V travel as in the forward, and dK,dV one hop more. The forward's arrays stay in the layout that is computed.
  [[nodiscard]] PlacementTimes measure_backward() {
    auto forward = whole_.begin_forward(q_, whole_.kv(k_, v_));
    whole_.travel(forward);
    const AttentionResult<Value> result = forward.engine->finish();
    forward.kv.reset();
    const Tensor<Input> held_grad_out = random(shared_.q, 9);
    const auto grad_to_heads = [&] { return layout_.to_heads(Held::queries, held_grad_out.view()); };
    const MaybeOwned<Input> grad_out = grad_to_heads();
    const auto inputs = [&](View<const Input> own_grad_out) {
      return BackwardInputs<Input>{q_, result.out, result.lse, own_grad_out};
    };
    const auto begin = [&](Attention& attention) {
      return attention.begin_backward(inputs(grad_out), filled_kv());
    };
    const auto none = [] { return std::make_unique<NoBackward<T>>(); };
    const Memory& memory = device_.memory();
    const bool exchanged = layout_.shares_heads();
    const auto dq = memory.template array<Value>(exchanged ? q_.view().shape() : Shape{}),
               dk = memory.template array<Value>(exchanged ? k_.view().shape() : Shape{});
    const auto pieces = [&] {
      (void)grad_to_heads();
      (void)layout_.to_sequence(Held::queries, dq.view());
      (void)layout_.to_sequence(Held::keys, dk.view());
      (void)layout_.to_sequence(Held::keys, dk.view());
    };
    return measure("backward", 2.5, begin, none, pieces, [&] {
      const MaybeOwned<Input> own = grad_to_heads();
      auto backward = whole_.begin_backward(inputs(own), whole_.kv(k_, v_));
      whole_.travel(backward);
      (void)whole_.finish(backward);
    });
  }

  static constexpr Index element_bytes = sizeof(T);  ///< of K,V in messages
  /// The largest parcel of K,V, and of dK,dV.
  [[nodiscard]] Index hop_bytes() const { return parcel_elements() * element_bytes; }
  [[nodiscard]] Index gradient_bytes() const { return parcel_elements() * static_cast<Index>(sizeof(Value)); }

 private:
  using Value = SumOf<Input>;
  using Attention = ObservedContextParallel<Input, T>;

  struct Timing {
    double seconds, exposed;  // exposed: waited for messages
  };

  [[nodiscard]] Ring ring() const { return shared_.grid.ring.ring(shared_.grid.rank); }
  [[nodiscard]] Index parcel_elements() const { return 2 * computed_keys(shared_).size(); }

  /// Where the device computes, as the rank holds it.
  [[nodiscard]] Tensor<Input> random(const Shape& all, std::uint64_t stream) const {
    Tensor<Value> host(all.with_seq(count(shared_.grid.slice(shared_.tokens.queries))));
    fill_random(host.view(), {.stream = stream});
    return owned(device_.memory(), device_.to_device(host));
  }

  /// K,V, also in the buffer where the next parcel arrives: what is computed when nothing is sent.
  [[nodiscard]] std::unique_ptr<KvWay<T>> filled_kv() const {
    auto kv = whole_.kv(k_, v_);
    auto* const in_ring = dynamic_cast<KvRing<T>*>(kv.get());
    const Ring own = ring();
    if (in_ring == nullptr || own.size == 1) return kv;
    (void)in_ring->parcel().exchange(own.rank);  // the next one has the same shape; nothing is sent
    in_ring->parcel().advance();
    device_.stage_kv(kv->k(), k_);
    device_.stage_kv(kv->v(), v_);
    return kv;
  }

  [[nodiscard]] double seconds_of(const auto& work) const {
    device_.synchronize();
    barrier(comm_);
    const auto begin = std::chrono::steady_clock::now();
    work();
    device_.synchronize();
    return max_over_ranks(comm_,
                          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  /// Seconds for which an attention has waited so far.
  [[nodiscard]] double exposed(const Attention& attention) const {
    return exchanged(links_).exposed_seconds + attention.hops().exposed_seconds;
  }
  [[nodiscard]] Timing timing(const Attention& attention, const auto& work) const {
    const double before = exposed(attention), seconds = seconds_of(work);
    return {seconds, max_over_ranks(comm_, exposed(attention) - before)};
  }
  [[nodiscard]] Timing travel(Attention& attention, auto pass) const {
    return timing(attention, [&] { attention.travel(pass); });
  }

  /// Medians of all parts, each in turn.
  /// \param work    FLOP relative to the forward
  /// \param pieces  the all-to-alls alone
  PlacementTimes measure(const std::string& pass, double work, const auto& begin, const auto& none,
                         const auto& pieces, const auto& whole) {
    const bool has_pieces = gathers_ || layout_.shares_heads();
    std::array<std::vector<double>, 7> seconds;
    PlacementTimes times;
    for (Index i = -1; i < options_.repetitions; ++i) {  // the first warms up
      const double all_steps = travel(compute_, begin(compute_)).seconds;
      auto without_engine = begin(whole_);
      without_engine.engine = none();
      const Index sent = exchanged(links_).bytes_sent;
      double messages = travel(whole_, std::move(without_engine)).seconds, moved = messages;
      const Timing late = gathers_ ? Timing{} : travel(in_turn_, begin(in_turn_)),
                   early = gathers_ ? Timing{} : travel(whole_, begin(whole_));
      if (layout_.shares_heads()) moved = seconds_of(pieces);
      times.all_to_all_bytes = exchanged(links_).bytes_sent - sent;
      const Timing all = has_pieces ? timing(whole_, whole) : Timing{};
      if (gathers_) messages = 0;
      if (i < 0) continue;
      const std::array measured{all_steps,     messages, late.seconds, early.seconds,
                                early.exposed, moved,    all.seconds};
      for (std::size_t k = 0; k < measured.size(); ++k) seconds[k].push_back(measured[k]);
      if (has_pieces) seconds[4].back() = all.exposed;
    }
    times.placement = name(shared_.tokens.queries.kind());
    times.pass = pass;
    times.compute = median(seconds[0]);
    times.messages = median(seconds[1]);
    times.in_turn = median(seconds[2]);
    times.overlapped = median(seconds[3]);
    times.exposed = median(seconds[4]);
    if (has_pieces) {
      times.all_to_all = median(seconds[5]);
      times.whole = median(seconds[6]);
    } else {
      times.all_to_all_bytes = 0;
    }
    add_model(times, work, pass == "backward" ? gradient_bytes() : 0);
    return times;
  }

  /// \param gradients  bytes of the parcel that makes a hop more
  void add_model(PlacementTimes& times, double work, Index gradients) const {
    Shape q = shared_.q;
    q.heads = q_.view().shape().heads;
    const auto& [queries, keys] = shared_.tokens;
    StepFlops flops = forward_flops(q, shared_.scoring.mask, queries, keys);
    for (auto& rank : flops)
      for (double& step : rank) step *= work;
    times.rates.flops_per_second = busiest(flops) / times.compute;
    const int ranks = ring().size;
    if (gathers_) {
      times.model = predict(flops, 0, times.rates);
      return;
    }
    const Index kv = hop_bytes();
    if (ranks > 1)
      times.rates.bytes_per_second =
          static_cast<double>(kv * (ranks - 1) + gradients * ranks) / times.messages;
    times.model = predict(flops, static_cast<double>(kv + gradients), times.rates);
    if (ranks > 1 && gradients > 0) {  // the last hop of dK,dV
      const double last_hop = static_cast<double>(gradients) / times.rates.bytes_per_second;
      times.model.overlapped += last_hop;
      times.model.in_turn += last_hop;
    }
  }

  const Device<Input, T>& device_;
  Links& links_;
  const Communicator& comm_;
  const BenchOptions& options_;
  SharedAttention shared_;
  bool gathers_;
  SilentLinks silent_;
  AdaptedLinks<SequentialTransport> late_;
  ComputeObserver of_compute_;
  Attention whole_, compute_, in_turn_;
  const HeadLayout& layout_;
  Tensor<Input> held_q_, held_k_, held_v_;
  MaybeOwned<Input> q_, k_, v_;  // in the layout that is computed
};

/// Measures each placement in which ranks get different work. Collective.
/// \param trace  null: none  \param make  the backend
/// \throws AgreedError when the ranks or heads cannot be divided so
template <class Input, class T>
BenchReport measure(const Communicator& comm, const BenchOptions& options, Activity& activity, Trace* trace,
                    Backend<Input, T> (*make)(const BackendContext&)) {
  const RankGrid grid = agreed_grid(comm, options);
  require_shareable_heads(comm, grid, options.heads, options.kv().heads);
  require_least_memory(comm, options.q(), options.kv(), options);
  const int ranks = grid.ring.size;
  Scoring scoring{1 / std::sqrt(static_cast<double>(options.dim))};
  if (options.causal) scoring.mask = Mask::causal();
  const auto shared = [&](const std::string& placement) {
    return SharedAttention{
        grid,
        options.division(),
        agreed_placement(comm, options, placement, options.seq, options.seq, ranks, scoring.mask).tokens,
        options.q(),
        options.kv(),
        scoring,
        true};
  };
  std::vector<std::string> placements{options.placement};
  if (options.placement == "compare") placements = {"contiguous", "zigzag"};
  const SharedAttention first = shared(placements.front());
  Workload work{first, options.backward};
  const Index q_values = computed_queries(work.shared).size(), kv_values = computed_keys(work.shared).size();
  work.extra_elements = 2 * kv_values;                                         // K,V as the rank holds them
  if (grid.ulysses.size > 1) work.extra_elements += q_values + 2 * kv_values;  // and as it computes with them
  Backend<Input, T> backend = make({comm, options, activity, work, trace, false});
  backend.require_memory();
  if (trace != nullptr) trace->describe(work.shared);
  BenchReport report;
  report.ranks = comm.size();
  report.ulysses = grid.ulysses.size;
  report.backend = backend.description;
  if (placements.size() > 1 && (!options.causal || ranks == 1)) placements.pop_back();  // the same work
  for (const std::string& placement : placements) {
    PlacementBench bench(backend, comm, options, placement == placements.front() ? first : shared(placement));
    report.element_bytes = bench.element_bytes;
    if (!options.all_gathers()) report.hop_bytes = bench.hop_bytes();
    report.placements.push_back(bench.measure_forward());
    if (options.backward) report.placements.push_back(bench.measure_backward());
  }
  return report;
}

}  // namespace ring_attention
