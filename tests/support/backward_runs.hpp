// Whole rings forward and backward, in one process or over MPI, and the checks of their results.
#pragma once

#include <vector>

#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/ring/backward.hpp"
#include "support/gradients.hpp"
#include "support/ring_runs.hpp"

namespace ring_attention::test {

/// The single device with the library's engines: forward, then backward.
template <class T>
Gradients<T> single_device_gradients(const GradientProblem<T>& problem);

/// The results of a rank: dQ of its queries, dK and dV of its keys.
template <class T>
struct RankGradients {
  Gradients<T> gradients;
  TransportStatistics kv, gradient;  // of the two channels
  Index peak_bytes = 0;              // of tensors, with the rank's own q, out, lse, dO and K,V
};

/// One rank's part of the backward.
/// \param attended  the forward's result on this rank
/// \param make_transport  called last, because transports borrow the parcels
template <class T>
RankGradients<T> run_rank_backward(const GradientProblem<T>& problem, const AttentionResult<T>& attended,
                                   const Ring& place, const MakeTransport& make_transport,
                                   const MakeBackward<T>& make_engine = fast_engines<T>.backward);

/// All ranks of a ring in this process: the backward after these forwards.
template <class T>
std::vector<RankGradients<T>> run_loopback_backward_with(const GradientProblem<T>& problem,
                                                         const std::vector<RankResult<T>>& forward,
                                                         MakeLoopback make_transport,
                                                         const MakeBackward<T>& make_engine);
template <class T, class Engine = CpuBackward<T>, class Link = LoopbackTransport>
std::vector<RankGradients<T>> run_loopback_backward(const GradientProblem<T>& problem,
                                                    const std::vector<RankResult<T>>& forward) {
  return run_loopback_backward_with<T>(problem, forward, loopback_link<Link>, make_backward<T, Engine>);
}

/// Forward and backward. The type parameters are those of the backward.
template <class T, class Engine = CpuBackward<T>, class Link = LoopbackTransport>
std::vector<RankGradients<T>> run_loopback_backward(const GradientProblem<T>& problem, int ranks) {
  return run_loopback_backward<T, Engine, Link>(problem, run_loopback(problem.forward, ranks));
}

/// The gradients of the whole problem, put together from those of the ranks.
template <class T>
Gradients<T> gathered(const std::vector<RankGradients<T>>& results, const GradientProblem<T>& problem);

/// The check that the right ring passes and each mutant must fail.
template <class T, class Engine = CpuBackward<T>, class Link = LoopbackTransport>
testing::AssertionResult ring_gradients_agree(const GradientProblem<T>& problem, int ranks) {
  return agrees(gathered(run_loopback_backward<T, Engine, Link>(problem, ranks), problem), problem);
}

/// What rank `ring.rank` sends and receives in the backward: K,V as in the forward; dK,dV once for every rank,
/// its own parcel included, in N messages; nothing in a ring of one.
template <class T>
testing::AssertionResult sent_what_it_should(const RankGradients<T>& result,
                                             const GradientProblem<T>& problem, const Ring& ring);

}  // namespace ring_attention::test
