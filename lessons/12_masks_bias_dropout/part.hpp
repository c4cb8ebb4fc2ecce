// Lesson 12, beside the idea: one rank's part of a problem, its ring, forward and backward, and the dense reference.
#pragma once

#include "engine.hpp"
#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention::lesson_12 {

enum class DenseBias { none, random, mask };  // mask: 0 and -inf

struct Setup {
  Shape q, kv;  // global
  Rules rules;
  DenseBias bias = DenseBias::none;
  std::uint64_t seed = 1;
  PlacementKind kind = PlacementKind::contiguous;
};

/// The arrays of a rank.
struct Inputs {
  Tensor<double> q, grad_out, k, v;
  Tensor<double> bias;  // [1, 1, its queries, all keys]: of all heads
};

/// The gradients of the rank, and two that belong to no rank: of the sinks, and of a table of biases with an entry for
/// each distance from -4 to 4 (farther pairs have the entry of the farthest).
struct Result {
  AttentionResult<double> attended;
  Gradients<double> gradients;
  std::vector<double> table;
  TransportStatistics forward_hops;
};

/// The library's words for the rules.
inline Scoring scoring_of(const Rules& rules, Index keys) {
  std::vector<Index> boundaries = rules.documents;
  boundaries.push_back(keys);
  return {rules.scale,
          {rules.left, rules.right, rules.offset, std::make_shared<Documents>(std::move(boundaries))},
          rules.slopes,
          rules.sinks,
          rules.dropout};
}

class RankShare {
 public:
  RankShare(const Communicator& comm, const Setup& setup)
      : comm_(comm),
        setup_(setup),
        keys_(setup.kind, setup.kv.seq, comm.size()),
        ranges_(Placement(setup.kind, setup.q.seq, comm.size()).ranges(comm.rank())) {
    const auto of = [&](std::uint64_t stream, const Shape& global, const TokenRanges& ranges) {
      Tensor<double> array(global.with_seq(count(ranges)));
      fill_random(array.view(), RandomFill{setup.seed, stream}, global, ranges);
      return array;
    };
    const TokenRanges own_keys = keys_.ranges(comm.rank());
    own_ = {of(0, setup.q, ranges_),
            of(3, setup.q, ranges_),
            of(1, setup.kv, own_keys),
            of(2, setup.kv, own_keys),
            {}};
    if (setup.bias == DenseBias::none) return;
    own_.bias = of(4, {1, 1, setup.q.seq, setup.kv.seq}, ranges_);
    if (setup.bias == DenseBias::mask)
      for (double& b : own_.bias.view().elements()) b = b > 1 ? negative_infinity<double> : 0;
  }

  [[nodiscard]] const Communicator& comm() const { return comm_; }
  [[nodiscard]] const Setup& setup() const { return setup_; }
  [[nodiscard]] const Inputs& own() const { return own_; }
  [[nodiscard]] const TokenRanges& ranges() const { return ranges_; }
  [[nodiscard]] const Placement& keys() const { return keys_; }
  [[nodiscard]] Ring ring() const { return {comm_.rank(), comm_.size()}; }

  /// The ring with the lesson's engine.
  [[nodiscard]] AttentionResult<double> forward(const Inputs& in, const Rules& rules, Mistake mistake,
                                                TransportStatistics* hops = nullptr) const {
    PairEngine engine(rules, mistake, ring());
    engine.begin(in.q, ranges_, in.bias);
    return fed(engine, in, hops);
  }

  /// The ring with an engine of the library.
  [[nodiscard]] AttentionResult<double> ring_with(auto& engine) const {
    engine.begin(own_.q, ranges_, own_.bias);
    return fed(engine, own_);
  }

  [[nodiscard]] Result run(Mistake mistake) const {
    Result outcome;
    outcome.attended = forward(own_, setup_.rules, mistake, &outcome.forward_hops);
    PairBackward engine(setup_.rules, mistake, ring());
    const BackwardInputs<double> result{own_.q, outcome.attended.out, outcome.attended.lse, own_.grad_out,
                                        own_.bias};
    engine.begin(result, ranges_);
    KvParcel<double> kv = parcel(own_), gradients(setup_.kv, keys_, comm_.rank());
    OverlappedTransport kv_transport(comm_, 0), gradient_transport(comm_, 1);
    ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
    outcome.gradients = {engine.finish(), converted<double>(View<const double>(gradients.k())),
                         converted<double>(View<const double>(gradients.v())), engine.term_gradients()};
    outcome.gradients.sinks = sink_gradient(result, setup_.rules.sinks);
    outcome.table = table_gradient(outcome.gradients.bias);
    if (mistake != "local-table") sum_over_ranks(comm_, outcome.table);
    if (mistake != "local-sink-gradient") sum_over_ranks(comm_, outcome.gradients.sinks);
    return outcome;
  }

  /// What the library's dense reference says, in double.
  struct Oracle {
    Reference forward;
    ReferenceGradients gradients;
    std::vector<double> table;
  };
  [[nodiscard]] Oracle oracle() const {
    const auto all = [&](std::uint64_t stream) {
      Tensor<double> array(setup_.kv);
      fill_random(array.view(), RandomFill{setup_.seed, stream});
      return array;
    };
    const Tensor<double> k = all(1), v = all(2);
    const Scoring scoring = scoring_of(setup_.rules, setup_.kv.seq);
    Oracle want{reference_forward(own_.q, k, v, scoring, ranges_, own_.bias),
                reference_backward(own_.q, k, v, own_.grad_out, scoring, ranges_, own_.bias),
                {}};
    want.table = table_gradient(want.gradients.bias);
    sum_over_ranks(comm_, want.table);
    sum_over_ranks(comm_, want.gradients.k.view().elements());
    sum_over_ranks(comm_, want.gradients.v.view().elements());
    sum_over_ranks(comm_, want.gradients.sinks);
    sum_over_ranks(comm_, want.gradients.magnitudes.sinks);
    for (double* magnitude : {&want.gradients.magnitude_k, &want.gradients.magnitude_v})
      sum_over_ranks(comm_, std::span(magnitude, 1));
    want.gradients.k = rows_at(want.gradients.k, keys_.ranges(comm_.rank()));
    want.gradients.v = rows_at(want.gradients.v, keys_.ranges(comm_.rank()));
    return want;
  }

 private:
  /// What an engine says that has begun, after the K,V of all ranks.
  [[nodiscard]] AttentionResult<double> fed(Engine<double>& engine, const Inputs& in,
                                            TransportStatistics* hops = nullptr) const {
    KvParcel<double> kv = parcel(in);
    OverlappedTransport transport(comm_);
    ring_forward(engine, transport, kv);
    if (hops != nullptr) *hops = transport.statistics();
    return engine.finish();
  }
  [[nodiscard]] KvParcel<double> parcel(const Inputs& in) const {
    KvParcel<double> parcel(setup_.kv, keys_, comm_.rank());
    std::ranges::copy(in.k.view().elements(), parcel.k().elements().begin());
    std::ranges::copy(in.v.view().elements(), parcel.v().elements().begin());
    return parcel;
  }

  /// What this rank's rows contribute.
  [[nodiscard]] std::vector<double> table_gradient(const Tensor<double>& grad_bias) const {
    constexpr Index farthest = 4;
    std::vector<double> table(2 * farthest + 1);
    const std::vector<Index> queries = positions(ranges_);
    if (grad_bias.size() == 0) return table;
    for (Index i = 0; i < std::ssize(queries); ++i)
      for (Index key = 0; key < setup_.kv.seq; ++key) {
        const Index distance = key - (queries[static_cast<std::size_t>(i)] + setup_.rules.offset);
        table[static_cast<std::size_t>(std::clamp(distance, -farthest, farthest) + farthest)] +=
            grad_bias.view()(0, 0, i, key);
      }
    return table;
  }

  const Communicator& comm_;
  Setup setup_;
  Placement keys_;
  TokenRanges ranges_;  // of the queries
  Inputs own_;
};

/// What is compared, by name: out, lse, dQ, ... Each with the largest difference that rounding may cause.
using Comparisons = std::vector<std::pair<std::string, Comparison>>;

inline bool all_zero(View<const double> array) {
  return std::ranges::all_of(array.elements(), [](double x) { return x == 0; });
}

inline Comparisons compare_all(const RankShare& part, const Result& got, const RankShare::Oracle& want) {
  Comparisons all;
  const ReferenceGradients& gradients = want.gradients;
  const auto add = [&](const char* name, View<const double> is, View<const double> should,
                       Tolerance tolerance) {
    all.emplace_back(name, compare(is, should, tolerance,
                                   {.allow_negative_infinity = true, .expect_zero = all_zero(should)}));
  };
  const auto numbers = [](const std::vector<double>& x) {
    return View<const double>(x.data(), {1, 1, 1, std::ssize(x)});
  };
  const Tolerance forward = attention_tolerance<double>(part.setup().kv.seq, want.forward.max_abs_score,
                                                        want.forward.max_abs_value);
  const Index terms = part.setup().q.seq * part.setup().q.heads;
  const auto tolerance = [&](double magnitude) {
    return gradient_tolerance<double>(terms, gradients.max_abs_score, magnitude);
  };
  add("out", got.attended.out, want.forward.out, forward);
  add("lse", got.attended.lse, want.forward.lse, forward);
  add("dQ", got.gradients.q, gradients.q, tolerance(gradients.magnitude_q));
  add("dK", got.gradients.k, gradients.k, tolerance(gradients.magnitude_k));
  add("dV", got.gradients.v, gradients.v, tolerance(gradients.magnitude_v));
  if (part.setup().bias != DenseBias::none) {
    add("dbias", got.gradients.bias, gradients.bias, tolerance(gradients.magnitude_bias));
    const double pairs = static_cast<double>(part.setup().q.seq * part.setup().kv.seq);
    double magnitude = max_over_ranks(part.comm(), gradients.magnitude_bias) * pairs;
    add("dtable", numbers(got.table), numbers(want.table), tolerance(magnitude));
  }
  if (!part.setup().rules.sinks.empty())
    add("dsinks", numbers(got.gradients.sinks), numbers(gradients.sinks),
        tolerance(std::ranges::max(gradients.magnitudes.sinks)));
  return all;
}

/// Do those agree, on every rank, whose names are among `names` (none: all)?
inline bool agree_on(const RankShare& part, const Comparisons& all,
                     const std::vector<std::string>& names = {}) {
  const bool ok = std::ranges::all_of(all, [&](const auto& named) {
    const bool asked = names.empty() || std::ranges::find(names, named.first) != names.end();
    return !asked || named.second.ok;
  });
  return all_of_ranks(part.comm(), ok);
}

}  // namespace ring_attention::lesson_12
