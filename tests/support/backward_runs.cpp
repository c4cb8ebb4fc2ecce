#include "ring_attention/core/allocation.hpp"
#include "support/backward_runs.hpp"

#include <algorithm>

namespace ring_attention::test {

template <class T>
Gradients<T> single_device_gradients(const GradientProblem<T>& problem) {
  const Problem<T>& p = problem.forward;
  const auto attended = attention_forward<T>(p.q, p.k, p.v, p.what.scoring, {}, p.bias);
  return attention_backward<T>({p.q, attended.out, attended.lse, problem.grad_out, p.bias}, p.k, p.v,
                               p.what.scoring);
}

template <class T>
RankGradients<T> run_rank_backward(const GradientProblem<T>& problem, const AttentionResult<T>& attended,
                                   const Ring& place, const MakeTransport& make_transport,
                                   const MakeBackward<T>& make_engine) {
  const Problem<T>& p = problem.forward;
  const Index before = allocation::current();
  allocation::reset_peak();
  const TokenRanges rows = query_ranges(p, place.rank, place.size);
  const Tensor<T> q = rows_of(p.q, rows), grad_out = rows_of(problem.grad_out, rows);
  const Tensor<T> out = attended.out.clone(), lse = attended.lse.clone();
  const Placement keys(p.what.kind, p.what.keys, place.size);
  KvParcel<T> kv(p.k.shape(), keys, place.rank, host_memory(), hops_of(p.what, place.size));
  KvParcel<T> gradients(p.k.shape(), keys, place.rank);
  copy_rows(kv.k(), p.k.view(), keys.ranges(place.rank));
  copy_rows(kv.v(), p.v.view(), keys.ranges(place.rank));

  const Tensor<T> bias = p.bias.size() > 0 ? rows_of(p.bias, rows) : Tensor<T>();
  const BackwardInputs<T> forward{q, out, lse, grad_out, bias};
  const auto engine = make_engine(p.what.scoring, p.what.block, forward, rows);
  const auto kv_transport = make_transport(0);
  const auto gradient_transport = make_transport(1);
  ring_backward(*engine, *kv_transport, *gradient_transport, kv, gradients);
  const Index peak = allocation::peak() - before;
  return {{engine->finish(), converted<T>(View<const T>(gradients.k())),
           converted<T>(View<const T>(gradients.v())), engine->bias_gradient(),
           sink_gradient(forward, p.what.scoring.sinks)},
          kv_transport->statistics(),
          gradient_transport->statistics(),
          peak};
}

template <class T>
std::vector<RankGradients<T>> run_loopback_backward_with(const GradientProblem<T>& problem,
                                                         const std::vector<RankResult<T>>& forward,
                                                         MakeLoopback make_transport,
                                                         const MakeBackward<T>& make_engine) {
  const int ranks = static_cast<int>(forward.size());
  std::vector<RankGradients<T>> results(forward.size());
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    results[at] = run_rank_backward<T>(
        problem, forward[at].attended, {rank, ranks},
        [&](int channel) { return make_transport(world, rank, channel); }, make_engine);
  });
  return results;
}

template <class T>
Gradients<T> gathered(const std::vector<RankGradients<T>>& results, const GradientProblem<T>& problem) {
  const Case& what = problem.what();
  const int ranks = static_cast<int>(results.size());
  const Placement keys(what.kind, what.keys, ranks);
  Gradients<T> all{Tensor<T>(what.q()), Tensor<T>(what.kv()), Tensor<T>(what.kv()),
                   Tensor<T>(what.bias().value_or(Shape{})), std::vector<double>(what.scoring.sinks.size())};
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

#define RING_ATTENTION_INSTANTIATE(T)                                                                       \
  template Gradients<T> single_device_gradients(const GradientProblem<T>&);                                 \
  template RankGradients<T> run_rank_backward(const GradientProblem<T>&, const AttentionResult<T>&,         \
                                              const Ring&, const MakeTransport&, const MakeBackward<T>&);   \
  template std::vector<RankGradients<T>> run_loopback_backward_with(                                        \
      const GradientProblem<T>&, const std::vector<RankResult<T>>&, MakeLoopback, const MakeBackward<T>&);  \
  template Gradients<T> gathered(const std::vector<RankGradients<T>>&, const GradientProblem<T>&);          \
  template testing::AssertionResult sent_what_it_should(const RankGradients<T>&, const GradientProblem<T>&, \
                                                        const Ring&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention::test
