// Lesson 08, beside the idea: one rank's part of a problem, with the result of its forward and the reference gradients;
// the variants that are wrong; the checks.
#pragma once

#include <array>

#include "common/mpi_counter.hpp"
#include "common/problem.hpp"
#include "mistakes/mistaken_ring.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention::lesson_08 {

inline const std::vector<Lesson::Wrong> mutants{
    {"stay-local", "dK,dV never travel: each rank keeps what it computes", "dkdv-stay-local"},
    {"shard-delta", "delta from the output over a rank's own keys", "delta-own-shard"},
    {"hop-too-few", "dK,dV make N - 1 hops, like K,V, and do not reach their owner", "hop-short"}};

/// What this rank sent and waited for: [0] K,V, [1] dK,dV.
using Cost = std::array<mpi_counter::Traffic, 2>;

struct RankShare {
  RankShare(const Communicator& communicator, const RandomProblem& what)
      : comm(communicator),
        problem(what),
        placement(PlacementKind::contiguous, what.kv.seq, communicator.size()),
        ranges(placement.ranges(communicator.rank())),
        q(what.queries<float>(ranges)),
        grad_out(what.make<float>(what.q, 3, ranges)) {
    CpuEngine<float> engine(problem.scoring);
    engine.begin(q, ranges);
    engine.accumulate(kv().current());
    own = engine.finish();

    engine.begin(q, ranges);
    KvParcel<float> parcel = kv();
    OverlappedTransport transport(comm);
    ring_forward(engine, transport, parcel);
    forward = engine.finish();
    compute_reference();
  }

  [[nodiscard]] KvParcel<float> kv() const { return problem.parcel<float>(placement, comm.rank()); }
  [[nodiscard]] KvParcel<float> zero_gradients() const { return {problem.kv, placement, comm.rank()}; }
  /// What the backward takes from the forward, right or wrong.
  [[nodiscard]] BackwardInputs<float> result(const RingMistake& mistake = ring_mistake("")) const {
    BackwardInputs<float> given{q, forward.out, forward.lse, grad_out};
    if (mistake.forward != nullptr) mistake.forward(given, own);
    return given;
  }
  [[nodiscard]] Ring ring() const { return {comm.rank(), comm.size()}; }

  const Communicator& comm;
  RandomProblem problem;
  Placement placement;
  TokenRanges ranges;  // where this rank's tokens stand
  Tensor<float> q, grad_out;
  AttentionResult<float> forward;      // over all keys
  mutable AttentionResult<float> own;  // over this rank's own keys; a mistake may overwrite it
  Reference want_forward;              // of this rank's tokens, and so is:
  ReferenceGradients want;

 private:
  // Dense, in double: this rank's rows. Their dK,dV, added over the ranks, are those of the whole problem.
  void compute_reference() {
    const auto k = converted<double>(problem.keys<float>());
    const auto v = converted<double>(problem.values<float>());
    want_forward = problem.reference<float>(ranges);
    want =
        reference_backward(converted<double>(q), k, v, converted<double>(grad_out), problem.scoring, ranges);
    sum_over_ranks(comm, want.k.view().elements());
    sum_over_ranks(comm, want.v.view().elements());
    std::array magnitudes{want.magnitude_k, want.magnitude_v};
    sum_over_ranks(comm, std::span<double>(magnitudes));
    want.k = rows_at(want.k, ranges);
    want.v = rows_at(want.v, ranges);
    want.magnitude_k = magnitudes[0];
    want.magnitude_v = magnitudes[1];
  }
};

inline Comparison compare_gradient(const RankShare& part, const Tensor<float>& got,
                                   const Tensor<double>& want, double magnitude) {
  // A query that sees one key has a constant softmax: its dQ, and what it adds to dK, are 0 by definition.
  const bool zero = std::ranges::all_of(want.view().elements(), [](double x) { return x == 0; });
  const Index terms = part.problem.q.seq * part.problem.q.heads / part.problem.kv.heads;
  return compare(got, want, gradient_tolerance<float>(terms, part.want.max_abs_score, magnitude),
                 {.expect_zero = zero});
}
/// Of dQ, dK and dV.
inline std::array<Comparison, 3> compare_all(const RankShare& part, const Gradients<float>& got) {
  return {compare_gradient(part, got.q, part.want.q, part.want.magnitude_q),
          compare_gradient(part, got.k, part.want.k, part.want.magnitude_k),
          compare_gradient(part, got.v, part.want.v, part.want.magnitude_v)};
}

inline bool same_bits(const Gradients<float>& a, const Gradients<float>& b) {
  return bitwise_equal(a.q, b.q) && bitwise_equal(a.k, b.k) && bitwise_equal(a.v, b.v);
}
inline void check_gradients(Lesson& lesson, const RankShare& part, const Gradients<float>& got) {
  const auto [q, k, v] = compare_all(part, got);
  lesson.check("dQ agrees with the dense reference in double", q);
  lesson.check("dK agrees with the dense reference in double", k);
  lesson.check("dV agrees with the dense reference in double", v);
}

// What a right backward costs this rank: K,V make N - 1 hops, dK,dV make N, or none in a ring of one.
inline bool cost_is_right(const RankShare& part, const Cost& cost) {
  const Ring ring{part.comm.rank(), part.comm.size()};
  const Index all = ring.size > 1 ? part.problem.kv.seq : 0;  // every shard's dK,dV, this rank's own included
  return cost[0].hops == ring.size - 1 &&
         cost[0].bytes == forward_bytes(part.problem, part.placement, ring) &&
         cost[1].hops == ring.gradient_hops() && cost[1].bytes == parcel_bytes(part.problem, all);
}

}  // namespace ring_attention::lesson_08
