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
Gradients<T> single_device_gradients(const GradientProblem<T>& problem) {
  const Problem<T>& p = problem.forward;
  const auto attended = attention_forward<T>(p.q, p.k, p.v, p.what.scoring, {}, p.bias);
  return attention_backward<T>({p.q, attended.out, attended.lse, problem.grad_out, p.bias}, p.k, p.v,
                               p.what.scoring);
}

/// The results of a rank: dQ of its queries, dK and dV of its keys.
template <class T>
struct RankGradients {
  Gradients<T> gradients;
  TransportStatistics kv, gradient;  // of the two channels
  Index peak_bytes = 0;              // of tensors, with the rank's own q, out, lse, dO and K,V
};

/// One rank's part of the backward.
/// \param attended  the forward's result on this rank
/// \param make_transport  makes this rank's transport for a channel; called last, because it borrows the parcels
template <class T, class MakeTransport>
RankGradients<T> run_rank_backward(const GradientProblem<T>& problem, const AttentionResult<T>& attended,
                                   const Ring& place, MakeTransport make_transport,
                                   const MakeBackward<T>& make_engine) {
  const Problem<T>& p = problem.forward;
  const Index before = allocation::current();
  allocation::reset_peak();
  const TokenRanges rows = query_ranges(p, place.rank, place.size);
  const Tensor<T> q = rows_of(p.q, rows), grad_out = rows_of(problem.grad_out, rows);
  const Tensor<T> out = attended.out.clone(), lse = attended.lse.clone();
  const Placement keys(p.what.kind, p.what.keys, place.size);
  KvParcel<T> kv(p.k.shape(), keys, place.rank, {}, hops_of(p.what, place.size));
  KvParcel<T> gradients(p.k.shape(), keys, place.rank);
  copy_rows(kv.k(), p.k.view(), keys.ranges(place.rank));
  copy_rows(kv.v(), p.v.view(), keys.ranges(place.rank));

  const auto engine = make_engine();
  const Tensor<T> bias = p.bias.size() > 0 ? rows_of(p.bias, rows) : Tensor<T>();
  const ForwardResult<T> forward{q, out, lse, grad_out, bias};
  engine->begin(forward, rows);
  auto&& kv_transport = make_transport(0);
  auto&& gradient_transport = make_transport(1);
  ring_backward(*engine, kv_transport, gradient_transport, kv, gradients);
  const Index peak = allocation::peak() - before;
  return {{engine->finish(), converted<T>(View<const T>(gradients.k())),
           converted<T>(View<const T>(gradients.v())), engine->bias_gradient(),
           sink_gradient(forward, p.what.scoring.sinks)},
          kv_transport.statistics(),
          gradient_transport.statistics(),
          peak};
}

template <class T, class MakeTransport>
RankGradients<T> run_rank_backward(const GradientProblem<T>& problem, const AttentionResult<T>& attended,
                                   const Ring& place, MakeTransport make_transport) {
  return run_rank_backward<T>(problem, attended, place, make_transport,
                              backward_engines<T, CpuBackward<T>>(problem.what()));
}

/// All ranks of a ring in this process: the backward after these forwards.
template <class T, class Link>
std::vector<RankGradients<T>> run_loopback_backward_with(const GradientProblem<T>& problem,
                                                         const std::vector<RankResult<T>>& forward,
                                                         const MakeBackward<T>& make_engine) {
  const int ranks = static_cast<int>(forward.size());
  std::vector<RankGradients<T>> results(forward.size());
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    results[at] = run_rank_backward(
        problem, forward[at].attended, {rank, ranks}, [&](int channel) { return Link(world, rank, channel); },
        make_engine);
  });
  return results;
}
template <class T, class Engine = CpuBackward<T>, class Link = LoopbackTransport>
std::vector<RankGradients<T>> run_loopback_backward(const GradientProblem<T>& problem,
                                                    const std::vector<RankResult<T>>& forward) {
  return run_loopback_backward_with<T, Link>(problem, forward, backward_engines<T, Engine>(problem.what()));
}

/// Forward and backward. The type parameters are those of the backward.
template <class T, class Engine = CpuBackward<T>, class Link = LoopbackTransport>
std::vector<RankGradients<T>> run_loopback_backward(const GradientProblem<T>& problem, int ranks) {
  return run_loopback_backward<T, Engine, Link>(problem, run_loopback(problem.forward, ranks));
}

/// The gradients of the whole problem, put together from those of the ranks.
template <class T>
Gradients<T> gathered(const std::vector<RankGradients<T>>& results, const GradientProblem<T>& problem) {
  const Case& what = problem.what();
  const int ranks = static_cast<int>(results.size());
  const Placement keys(what.kind, what.keys, ranks);
  Gradients<T> all{Tensor<T>(what.q()), Tensor<T>(what.kv()), Tensor<T>(what.kv()), Tensor<T>(what.bias()),
                   std::vector<double>(what.scoring.sinks.size())};
  for (int rank = 0; rank < ranks; ++rank) {
    const Gradients<T>& part = results[static_cast<std::size_t>(rank)].gradients;
    put_rows(all.q, part.q, query_ranges(problem.forward, rank, ranks));
    put_rows(all.k, part.k, keys.ranges(rank));
    put_rows(all.v, part.v, keys.ranges(rank));
    if (all.bias.size() > 0) put_rows(all.bias, part.bias, query_ranges(problem.forward, rank, ranks));
    for (std::size_t head = 0; head < all.sinks.size(); ++head) all.sinks[head] += part.sinks[head];
  }
  return all;
}

/// The check that the right ring passes and each mutant must fail.
template <class T, class Engine = CpuBackward<T>, class Link = LoopbackTransport>
testing::AssertionResult ring_gradients_agree(const GradientProblem<T>& problem, int ranks) {
  return agrees(gathered(run_loopback_backward<T, Engine, Link>(problem, ranks), problem), problem);
}

/// What rank `ring.rank` sends and receives in the backward: K,V as in the forward; dK,dV once for every rank,
/// its own parcel included, in N messages; nothing in a ring of one.
template <class T>
testing::AssertionResult sent_what_it_should(const RankGradients<T>& result,
                                             const GradientProblem<T>& problem, const Ring& ring) {
  if (const auto verdict = sent_what_it_should(result.kv, problem.forward, ring); !verdict)
    return testing::AssertionFailure() << "K,V: " << verdict.message();
  const bool alone = ring.size == 1;
  const Index all = alone ? 0 : 2 * problem.what().kv().size() * static_cast<Index>(sizeof(T));
  const TransportStatistics& sent = result.gradient;
  const Index owners = std::min<Index>(ring.size, problem.what().keys);  // those with tokens
  if (sent.messages_sent != (alone ? 0 : owners) || sent.bytes_sent != all || sent.bytes_received != all)
    return testing::AssertionFailure()
           << "dK,dV: rank " << ring.rank << " of " << ring.size << " sent " << sent.messages_sent
           << " messages, " << sent.bytes_sent << " bytes, and received " << sent.bytes_received
           << " bytes where " << all << " were due";
  return testing::AssertionSuccess();
}

}  // namespace ring_attention::test
