/// \file
/// What the lessons with a ring share: the flags of the problem, the buffers, the agreement, hops and bytes.
#pragma once

#include <unistd.h>

#include "common/lesson.hpp"
#include "common/random_problem.hpp"
#include "common/saved_cases.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention {

/// --seq, --heads, --kv-heads and --dim, with a lesson's defaults.
struct ProblemFlags {
  Index seq, heads, kv_heads, dim;

  /// Before Lesson::parse().
  void offer(Lesson& lesson, Bounds dims = {},
             const std::string& tokens = "Tokens S; any number, also fewer than ranks") {
    lesson.options().option("--seq", seq, tokens);
    lesson.options().option("--heads", heads, "Query heads Hq");
    lesson.options().option("--kv-heads", kv_heads, "KV heads Hkv; must divide --heads");
    lesson.options().option("--dim", dim, "Head dim D", dims);
  }
  /// After Lesson::parse(). \throws AgreedError on all ranks unless --kv-heads divides --heads
  [[nodiscard]] RandomProblem problem(const Lesson& lesson, const Mask& mask = {}) const {
    if (heads % kv_heads != 0) throw AgreedError("--kv-heads must divide --heads");
    return {{1, heads, seq, dim}, {1, kv_heads, seq, dim}, {default_scale(dim), mask}, lesson.seed()};
  }
};

/// The two buffers of a ring, each large enough for the parcel of any rank. `current` holds that of this rank: K, then
/// V.
struct RingBuffers {
  RingBuffers(const RandomProblem& problem, const Placement& placement, int rank)
      : current(problem.kv.with_seq(2 * placement.max_tokens())) {
    if (placement.ranks() > 1) incoming = Tensor<float>(current.shape());
    const TokenRanges ranges = placement.ranges(rank);
    const Shape shape = problem.kv.with_seq(count(ranges));
    const View<float> k(current.data(), shape), v(current.data() + k.size(), shape);
    fill_random(k, problem.fill(1), problem.kv, ranges);
    fill_random(v, problem.fill(2), problem.kv, ranges);
  }
  Tensor<float> current, incoming;  // none arrives in a ring of one
};

[[nodiscard]] inline bool same_bits(const AttentionResult<float>& a, const AttentionResult<float>& b) {
  return bitwise_equal(a.out, b.out) && bitwise_equal(a.lse, b.lse);
}

inline void check_reference(Lesson& lesson, const RandomProblem& problem, const Reference& want,
                            const AttentionResult<float>& got) {
  const Tolerance tolerance = problem.tolerance<float>(want);
  lesson.check("out agrees with the dense reference in double", compare(got.out, want.out, tolerance));
  lesson.check("lse agrees with the dense reference in double", compare(got.lse, want.lse, tolerance));
}

/// Waits for the other ranks without spinning: one of them measures meanwhile.
inline void wait_asleep(const Communicator& comm) {
  MPI_Request all_here = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm.handle(), &all_here));
  for (int done = 0; done == 0; usleep(1000)) check_mpi(MPI_Test(&all_here, &done, MPI_STATUS_IGNORE));
}

/// One run of the library's loop on this rank's part of a problem.
struct RingRun {
  AttentionResult<float> rows;  // of this rank
  double wall = 0;              // seconds, slowest rank
  TransportStatistics statistics;
};

/// \tparam Link  a Transport over MPI
template <class Link>
RingRun run_library_ring(const RandomProblem& problem, const Communicator& comm, const Placement& placement,
                         auto& engine) {
  const TokenRanges ranges = placement.ranges(comm.rank());
  const auto q = problem.queries<float>(ranges);
  KvParcel<float> kv = problem.parcel<float>(placement, comm.rank());
  engine.begin(q, ranges);
  Link transport(comm);
  barrier(comm);
  const double begin = MPI_Wtime();
  ring_forward<float>(engine, transport, kv);
  const double wall = max_over_ranks(comm, MPI_Wtime() - begin);
  return {engine.finish(), wall, transport.statistics()};
}

/// The rows at `ranges` of an array of the whole sequence.
template <class T>
[[nodiscard]] Tensor<T> rows_at(const Tensor<T>& whole, const TokenRanges& ranges) {
  const std::vector<Index> from = positions(ranges);
  Tensor<T> rows(whole.shape().with_seq(count(ranges)));
  for (Index b = 0; b < rows.shape().batch; ++b)
    for (Index h = 0; h < rows.shape().heads; ++h)
      for (std::size_t i = 0; i < from.size(); ++i)
        std::ranges::copy(whole.view().row(b, h, from[i]),
                          rows.view().row(b, h, static_cast<Index>(i)).begin());
  return rows;
}

/// K and V of so many tokens, in bytes.
[[nodiscard]] inline Index parcel_bytes(const RandomProblem& problem, Index tokens) {
  return 2 * problem.kv.with_seq(tokens).size() * static_cast<Index>(sizeof(float));
}

/// What this rank sends in a forward ring: the parcels of all ranks but the next one, 2 B Hkv D e (S - c).
[[nodiscard]] inline Index forward_bytes(const RandomProblem& problem, const Placement& placement,
                                         const Ring& ring) {
  return ring.size == 1 ? 0 : parcel_bytes(problem, problem.kv.seq - placement.tokens(ring.next()));
}

}  // namespace ring_attention
