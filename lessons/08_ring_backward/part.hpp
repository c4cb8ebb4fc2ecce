// Lesson 08, beside the idea: one rank's part of a problem, its forward done, and what the oracle says of it.
#pragma once

#include <array>

#include "cli/random_problem.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention::lesson_08 {

enum class Variant { right, stay_local, block_delta, hop_too_few };

// What one kind of parcel cost this rank. [0] stands for K,V, [1] for dK,dV.
struct Traffic {
  Index hops = 0;
  Index bytes = 0;             // sent
  double exposed_seconds = 0;  // waited for
};
using Cost = std::array<Traffic, 2>;

// One of the two, and what of it is under way.
struct Channel {
  int tag;  // parcels of different tags do not meet
  KvParcel<float>& parcel;
  Traffic traffic = {};
  std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};  // receive, send
};

struct Outcome {
  Gradients<float> gradients;  // dQ of this rank's queries; dK,dV of its keys
  Cost cost;
  Index parcel_bytes = 0;  // the most that the parcels held
  double seconds = 0;      // the loop
};

// The tokens at `ranges` of an array of the whole sequence.
inline Tensor<double> rows_of(const Tensor<double>& whole, const TokenRanges& ranges) {
  const std::vector<Index> from = positions(ranges);
  Tensor<double> rows(whole.shape().with_seq(count(ranges)));
  for (Index b = 0; b < rows.shape().batch; ++b)
    for (Index h = 0; h < rows.shape().heads; ++h)
      for (Index s = 0; s < rows.shape().seq; ++s)
        std::ranges::copy(whole.view().row(b, h, from[static_cast<std::size_t>(s)]),
                          rows.view().row(b, h, s).begin());
  return rows;
}

struct Part {
  Part(const Communicator& communicator, const RandomProblem& what)
      : comm(communicator),
        problem(what),
        placement(PlacementKind::contiguous, what.kv.seq, communicator.size()),
        ranges(placement.ranges(communicator.rank())),
        q(what.queries<float>(ranges)),
        grad_out(what.make<float>(what.q, 3, ranges)) {
    CpuEngine engine(problem.scoring);
    engine.begin(q, ranges);
    engine.accumulate(kv().current());
    own_out = engine.finish().out;

    engine.begin(q, ranges);
    KvParcel<float> parcel = kv();
    OverlappedTransport transport(comm);
    ring_forward(engine, transport, parcel);
    forward = engine.finish();
    ask_the_oracle();
  }

  [[nodiscard]] KvParcel<float> kv() const { return problem.parcel<float>(placement, comm.rank()); }
  [[nodiscard]] KvParcel<float> no_gradients() const { return {problem.kv, placement, comm.rank()}; }
  [[nodiscard]] ForwardResult<float> result(Variant variant) const {
    return {q, variant == Variant::block_delta ? own_out : forward.out, forward.lse, grad_out};
  }

  const Communicator& comm;
  RandomProblem problem;
  Placement placement;
  TokenRanges ranges;  // where this rank's tokens stand
  Tensor<float> q, grad_out;
  AttentionResult<float> forward;  // over all keys
  Tensor<float> own_out;           // over this rank's own keys
  Reference want_forward;          // of this rank's tokens, and so is:
  ReferenceGradients want;

 private:
  // Dense, in double: this rank's rows. Their dK,dV, added over the ranks, are those of the whole problem.
  void ask_the_oracle() {
    const auto k = converted<double>(problem.keys<float>());
    const auto v = converted<double>(problem.values<float>());
    want_forward = problem.reference<float>(ranges);
    want =
        reference_backward(converted<double>(q), k, v, converted<double>(grad_out), problem.scoring, ranges);
    sum_over_ranks(comm, want.k.view().elements());
    sum_over_ranks(comm, want.v.view().elements());
    std::array magnitudes{want.magnitude_k, want.magnitude_v};
    sum_over_ranks(comm, std::span<double>(magnitudes));
    want.k = rows_of(want.k, ranges);
    want.v = rows_of(want.v, ranges);
    want.magnitude_k = magnitudes[0];
    want.magnitude_v = magnitudes[1];
  }
};

inline Comparison compare_gradient(const Part& part, const Tensor<float>& got, const Tensor<double>& want,
                                   double magnitude) {
  // A query that sees one key has a constant softmax: its dQ, and what it adds to dK, are 0 by definition.
  const bool zero = std::ranges::all_of(want.view().elements(), [](double x) { return x == 0; });
  const Index terms = part.problem.q.seq * part.problem.q.heads / part.problem.kv.heads;
  return compare(got, want, gradient_tolerance<float>(terms, part.want.max_abs_score, magnitude),
                 {.expect_zero = zero});
}
inline Comparison compare_q(const Part& part, const Gradients<float>& got) {
  return compare_gradient(part, got.q, part.want.q, part.want.magnitude_q);
}
inline Comparison compare_k(const Part& part, const Gradients<float>& got) {
  return compare_gradient(part, got.k, part.want.k, part.want.magnitude_k);
}
inline Comparison compare_v(const Part& part, const Gradients<float>& got) {
  return compare_gradient(part, got.v, part.want.v, part.want.magnitude_v);
}

// What a right backward costs this rank: K,V make N - 1 hops, dK,dV make N, or none in a ring of one.
inline bool cost_is_right(const Part& part, const Cost& cost) {
  const Ring ring{part.comm.rank(), part.comm.size()};
  const Shape& kv = part.problem.kv;
  const Index bytes_of_a_token = 2 * kv.with_seq(1).size() * static_cast<Index>(sizeof(float));
  const Index all = ring.size > 1 ? kv.seq : 0;  // every shard's dK,dV, this rank's own included
  const Index all_but_next = ring.size > 1 ? kv.seq - part.placement.tokens(ring.next()) : 0;
  return cost[0].hops == ring.size - 1 && cost[0].bytes == bytes_of_a_token * all_but_next &&
         cost[1].hops == (ring.size > 1 ? ring.size : 0) && cost[1].bytes == bytes_of_a_token * all;
}

}  // namespace ring_attention::lesson_08
