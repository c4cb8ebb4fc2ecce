// Whole jobs of Ulysses, of Ulysses with a ring, and of all-gather, in one process or over MPI: forward, then backward.
#pragma once

#include <vector>

#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/loopback_links.hpp"
#include "support/backward_runs.hpp"

namespace ring_attention::test {

/// The results of a rank for the tokens that it holds, with all heads.
template <class T>
struct ParallelResult {
  AttentionResult<T> attended;
  Gradients<T> gradients;
  TransportStatistics forward_pieces, pieces;    // of the all-to-all: of the forward; of forward and backward
  TransportStatistics forward_kv, kv, gradient;  // of the ring
};

/// The decisions in which a hybrid can be subtly wrong: a mutant replaces one.
struct HybridRules {
  virtual ~HybridRules() = default;
  /// Where the rank that holds the tokens of `held` computes.
  [[nodiscard]] virtual RankGrid computes(const RankGrid& held) const { return held; }
  /// What it holds.
  [[nodiscard]] virtual TokenRanges slice(const RankGrid& held, PlacementKind kind, Index seq) const {
    return held.slice(Placement(kind, seq, held.ring.size));
  }
  /// The query head in place `head`, when `ranks` ranks share `heads` of them.
  [[nodiscard]] virtual Index query_head(Index head, Index /*heads*/, int /*ranks*/) const { return head; }
  /// Whether rank `own` returns zeros for its part of dK and dV, when the ranks have these K,V heads.
  [[nodiscard]] virtual bool returns_nothing(const std::vector<Interval>& /*heads*/,
                                             std::size_t /*own*/) const {
    return false;
  }
};

/// One rank's part, as a program does it that keeps arrays in the layout that it computes. Every hop is made.
/// \param gathers  an all-gather; `held` then shares no heads
template <class T>
ParallelResult<T> run_rank_parallel(const GradientProblem<T>& problem, const RankGrid& held, bool gathers,
                                    Links& links, const Engines<T>& engines = fast_engines<T>,
                                    const HybridRules& rules = {});

/// All ranks in this process.
template <class T>
std::vector<ParallelResult<T>> run_loopback_hybrid(const GradientProblem<T>& problem, int ulysses, int rings,
                                                   const Engines<T>& engines = fast_engines<T>,
                                                   const HybridRules& rules = {});
template <class T>
std::vector<ParallelResult<T>> run_loopback_all_gather(const GradientProblem<T>& problem, int ranks,
                                                       const Engines<T>& engines = fast_engines<T>);

/// Forward and backward of the whole problem.
template <class T>
struct Whole {
  AttentionResult<T> attended;
  Gradients<T> gradients;
};

template <class T>
Whole<T> zeros(const Case& what);

/// Puts the results of a rank at its tokens.
template <class T>
void put_rank(Whole<T>& all, const AttentionResult<T>& attended, const Gradients<T>& gradients,
              const TokenRanges& queries, const TokenRanges& keys);

template <class T>
Whole<T> gathered(const std::vector<ParallelResult<T>>& results, const Case& what, int ulysses,
                  const HybridRules& rules = {});

/// A ring over `ranks`, in this process.
template <class T>
Whole<T> whole_ring(const GradientProblem<T>& problem, int ranks,
                    const Engines<T>& engines = fast_engines<T>);

/// The same bits in all that a head has by itself: everything but the gradients of a bias that heads share, and of sinks,
/// which are sums over ranks in another order.
template <class T>
testing::AssertionResult same_bits(const Whole<T>& a, const Whole<T>& b);

/// Both ways against the dense reference.
template <class T>
testing::AssertionResult agrees(const Whole<T>& got, const GradientProblem<T>& problem);

}  // namespace ring_attention::test
