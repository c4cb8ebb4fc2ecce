#include "support/parallel_runs.hpp"

#include <algorithm>

namespace ring_attention::test {
namespace {

/// The query heads in the order of the rules, or back.
template <class T>
Tensor<T> ordered_heads(const HybridRules& rules, const Tensor<T>& x, int ranks, bool back = false) {
  Tensor<T> ordered(x.shape());
  const View<const T> from = x;
  const auto elements = static_cast<std::size_t>(x.shape().seq * x.shape().dim);
  for (Index batch = 0; batch < x.shape().batch; ++batch)
    for (Index head = 0; head < x.shape().heads; ++head) {
      const Index other = rules.query_head(head, x.shape().heads, ranks);
      std::copy_n(from.head(batch, back ? head : other), elements,
                  ordered.view().head(batch, back ? other : head));
    }
  return ordered;
}

}  // namespace

template <class T>
ParallelResult<T> run_rank_hybrid(const GradientProblem<T>& problem, const HybridPlace& held,
                                  AnyAllToAll& link, const MakeTransport& make_transport,
                                  const Engines<T>& engines, const HybridRules& rules) {
  const Problem<T>& p = problem.forward;
  const Case& what = p.what;
  const HybridPlace place = rules.computes(held);
  const int sharing = place.ulysses.size, ring_rank = place.ring.index(place.rank);
  const Placement queries(what.kind, what.queries, place.ring.size),
      keys(what.kind, what.keys, place.ring.size);
  const HeadLayout layout(link, place, queries, keys, what.q().heads, what.kv_heads);
  const auto queries_to_heads = [&](const Tensor<T>& all) {
    const TokenRanges slice = rules.slice(held, what.kind, what.queries);
    const Tensor<T> own = ordered_heads(rules, rows_of(all, slice), sharing);
    return layout.queries_to_heads(own.view());
  };
  const auto keys_to_heads = [&](const Tensor<T>& all) {
    const Tensor<T> own = rows_of(all, rules.slice(held, what.kind, what.keys));
    return layout.keys_to_heads(own.view());
  };
  const auto queries_to_sequence = [&](const Tensor<T>& y) {
    return ordered_heads(rules, layout.queries_to_sequence(y.view()), sharing, true);
  };
  const auto keys_to_sequence = [&](View<T> y) {
    const HeadShare share(what.q().heads, what.kv_heads, sharing);
    if (rules.returns_nothing(share.kv, static_cast<std::size_t>(link.rank())))
      std::ranges::fill(y.elements(), T{0});
    return layout.keys_to_sequence(View<const T>(y));
  };
  const auto bias_to_heads = [&](const Tensor<T>& all) {
    const Tensor<T> own = rows_of(all, rules.slice(held, what.kind, what.queries));
    return layout.bias_to_heads(own.view());
  };
  ParallelResult<T> result;

  const Tensor<T> q = queries_to_heads(p.q), k = keys_to_heads(p.k), v = keys_to_heads(p.v);
  const Tensor<T> bias = p.bias.size() > 0 ? bias_to_heads(p.bias) : Tensor<T>();
  const Scoring scoring = layout.scoring(what.scoring);
  const auto write_kv = [&](KvParcel<T>& parcel) {
    std::ranges::copy(k.view().elements(), parcel.k().data());
    std::ranges::copy(v.view().elements(), parcel.v().data());
  };
  KvParcel<T> kv(k.shape(), keys, ring_rank);
  write_kv(kv);
  const auto engine = engines.forward(scoring, what.block);
  engine->begin(q, place.shard(queries), bias);
  {
    const auto transport = make_transport(0);
    ring_forward(*engine, *transport, kv);
    result.forward_kv = transport->statistics();
  }
  const AttentionResult<T> attended = engine->finish();
  result.attended = {queries_to_sequence(attended.out), queries_to_sequence(attended.lse)};
  result.forward_pieces = link.statistics();

  const Tensor<T> grad_out = queries_to_heads(problem.grad_out);
  KvParcel<T> again(k.shape(), keys, ring_rank), gradients(k.shape(), keys, ring_rank);
  write_kv(again);
  const auto backward = engines.backward(scoring, what.block);
  const ForwardResult<T> forward{q, attended.out, attended.lse, grad_out, bias};
  backward->begin(forward, place.shard(queries));
  {
    const auto kv_transport = make_transport(0);
    const auto gradient_transport = make_transport(1);
    ring_backward(*backward, *kv_transport, *gradient_transport, again, gradients);
    result.kv = kv_transport->statistics();
    result.gradient = gradient_transport->statistics();
  }
  result.gradients = {queries_to_sequence(backward->finish()), keys_to_sequence(gradients.k()),
                      keys_to_sequence(gradients.v())};
  if (bias.size() > 0) {
    const Tensor<T> grad_bias = backward->bias_gradient();
    result.gradients.bias = layout.bias_to_sequence(grad_bias.view(), what.bias_heads);
  }
  result.gradients.sinks = layout.among_all(sink_gradient(forward, scoring.sinks));
  result.pieces = link.statistics();
  return result;
}

template <class T>
std::vector<ParallelResult<T>> run_loopback_hybrid(const GradientProblem<T>& problem, int ulysses, int rings,
                                                   const Engines<T>& engines, const HybridRules& rules) {
  const int ranks = ulysses * rings;
  std::vector<ParallelResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    const HybridPlace held(rank, ranks, ulysses);
    const HybridPlace place = rules.computes(held);
    Any<LoopbackAllToAll> link(world, rank, place.ulysses);
    const auto make_transport = [&](int channel) {
      return any_transport<LoopbackTransport>(world, rank, channel, place.ring);
    };
    results[static_cast<std::size_t>(rank)] =
        run_rank_hybrid<T>(problem, held, link, make_transport, engines, rules);
  });
  return results;
}

template <class T>
ParallelResult<T> run_rank_all_gather(const GradientProblem<T>& problem, AnyAllToAll& link,
                                      const Engines<T>& engines) {
  const Problem<T>& p = problem.forward;
  const Ring ring{link.rank(), link.size()};
  const TokenRanges rows = query_ranges(p, ring.rank, ring.size);
  const Placement keys(p.what.kind, p.what.keys, ring.size);
  const Tensor<T> q = rows_of(p.q, rows);
  const Tensor<T> bias = p.bias.size() > 0 ? rows_of(p.bias, rows) : Tensor<T>();
  KvShards<T> kv(p.k.shape(), keys), gradients(p.k.shape(), keys);
  copy_rows(kv.k(ring.rank), p.k.view(), keys.ranges(ring.rank));
  copy_rows(kv.v(ring.rank), p.v.view(), keys.ranges(ring.rank));
  all_gather(link, kv);
  ParallelResult<T> result;
  result.forward_pieces = link.statistics();

  const auto engine = engines.forward(p.what.scoring, p.what.block);
  engine->begin(q, rows, bias);
  all_gather_forward(*engine, ring, kv);
  result.attended = engine->finish();

  const Tensor<T> grad_out = rows_of(problem.grad_out, rows);
  const auto backward = engines.backward(p.what.scoring, p.what.block);
  const ForwardResult<T> forward{q, result.attended.out, result.attended.lse, grad_out, bias};
  backward->begin(forward, rows);
  all_gather_backward(*backward, link, kv, gradients);
  result.gradients = {backward->finish(), converted<T>(gradients.k(ring.rank)),
                      converted<T>(gradients.v(ring.rank)), backward->bias_gradient(),
                      sink_gradient(forward, p.what.scoring.sinks)};
  result.pieces = link.statistics();
  return result;
}

template <class T>
std::vector<ParallelResult<T>> run_loopback_all_gather(const GradientProblem<T>& problem, int ranks,
                                                       const Engines<T>& engines) {
  std::vector<ParallelResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    Any<LoopbackAllToAll> link(world, rank, Axis{1, ranks});
    results[static_cast<std::size_t>(rank)] = run_rank_all_gather<T>(problem, link, engines);
  });
  return results;
}

template <class T>
Whole<T> zeros(const Case& what) {
  return {{Tensor<T>(what.q()), Tensor<T>(what.q().per_row())},
          {Tensor<T>(what.q()), Tensor<T>(what.kv()), Tensor<T>(what.kv()), Tensor<T>(what.bias()),
           std::vector<double>(what.scoring.sinks.size())}};
}

template <class T>
void put_rank(Whole<T>& all, const AttentionResult<T>& attended, const Gradients<T>& gradients,
              const TokenRanges& queries, const TokenRanges& keys) {
  put_rows(all.attended.out, attended.out, queries);
  put_rows(all.attended.lse, attended.lse, queries);
  put_rows(all.gradients.q, gradients.q, queries);
  put_rows(all.gradients.k, gradients.k, keys);
  put_rows(all.gradients.v, gradients.v, keys);
  if (all.gradients.bias.size() > 0) put_rows(all.gradients.bias, gradients.bias, queries);
  for (std::size_t head = 0; head < all.gradients.sinks.size(); ++head)
    all.gradients.sinks[head] += gradients.sinks[head];
}

template <class T>
Whole<T> gathered(const std::vector<ParallelResult<T>>& results, const Case& what, int ulysses,
                  const HybridRules& rules) {
  Whole<T> all = zeros<T>(what);
  const int ranks = static_cast<int>(results.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const HybridPlace held(rank, ranks, ulysses);
    const auto& result = results[static_cast<std::size_t>(rank)];
    put_rank(all, result.attended, result.gradients, rules.slice(held, what.kind, what.queries),
             rules.slice(held, what.kind, what.keys));
  }
  return all;
}

template <class T>
Whole<T> whole_ring(const GradientProblem<T>& problem, int ranks, const Engines<T>& engines) {
  const Case& what = problem.what();
  const auto forward =
      run_loopback_with<T>(problem.forward, ranks, loopback_link<LoopbackTransport>, engines.forward);
  const auto backward =
      run_loopback_backward_with<T>(problem, forward, loopback_link<LoopbackTransport>, engines.backward);
  Whole<T> all = zeros<T>(what);
  for (int rank = 0; rank < ranks; ++rank)
    put_rank(all, forward[static_cast<std::size_t>(rank)].attended,
             backward[static_cast<std::size_t>(rank)].gradients, query_ranges(problem.forward, rank, ranks),
             Placement(what.kind, what.keys, ranks).ranges(rank));
  return all;
}

template <class T>
testing::AssertionResult same_bits(const Whole<T>& a, const Whole<T>& b) {
  if (const auto verdict = same_bits(a.attended, b.attended); !verdict) return verdict;
  if (!bitwise_equal(a.gradients.q, b.gradients.q))
    return testing::AssertionFailure() << "dq differs in its bits";
  if (!bitwise_equal(a.gradients.k, b.gradients.k))
    return testing::AssertionFailure() << "dk differs in its bits";
  if (!bitwise_equal(a.gradients.v, b.gradients.v))
    return testing::AssertionFailure() << "dv differs in its bits";
  const Shape& bias = a.gradients.bias.shape();
  if (bias.heads == a.gradients.q.shape().heads && !bitwise_equal(a.gradients.bias, b.gradients.bias))
    return testing::AssertionFailure() << "dbias differs in its bits";
  return testing::AssertionSuccess();
}

template <class T>
testing::AssertionResult agrees(const Whole<T>& got, const GradientProblem<T>& problem) {
  if (const auto verdict = agrees(got.attended, problem.forward); !verdict) return verdict;
  return agrees(got.gradients, problem);
}

template ParallelResult<float> run_rank_hybrid(const GradientProblem<float>&, const HybridPlace&,
                                               AnyAllToAll&, const MakeTransport&, const Engines<float>&,
                                               const HybridRules&);
template std::vector<ParallelResult<float>> run_loopback_hybrid(const GradientProblem<float>&, int, int,
                                                                const Engines<float>&, const HybridRules&);
template ParallelResult<float> run_rank_all_gather(const GradientProblem<float>&, AnyAllToAll&,
                                                   const Engines<float>&);
template std::vector<ParallelResult<float>> run_loopback_all_gather(const GradientProblem<float>&, int,
                                                                    const Engines<float>&);
template Whole<float> zeros(const Case&);
template void put_rank(Whole<float>&, const AttentionResult<float>&, const Gradients<float>&,
                       const TokenRanges&, const TokenRanges&);
template Whole<float> gathered(const std::vector<ParallelResult<float>>&, const Case&, int,
                               const HybridRules&);
template Whole<float> whole_ring(const GradientProblem<float>&, int, const Engines<float>&);
template testing::AssertionResult same_bits(const Whole<float>&, const Whole<float>&);
template testing::AssertionResult agrees(const Whole<float>&, const GradientProblem<float>&);

template ParallelResult<double> run_rank_hybrid(const GradientProblem<double>&, const HybridPlace&,
                                                AnyAllToAll&, const MakeTransport&, const Engines<double>&,
                                                const HybridRules&);
template std::vector<ParallelResult<double>> run_loopback_hybrid(const GradientProblem<double>&, int, int,
                                                                 const Engines<double>&, const HybridRules&);
template ParallelResult<double> run_rank_all_gather(const GradientProblem<double>&, AnyAllToAll&,
                                                    const Engines<double>&);
template std::vector<ParallelResult<double>> run_loopback_all_gather(const GradientProblem<double>&, int,
                                                                     const Engines<double>&);
template Whole<double> zeros(const Case&);
template void put_rank(Whole<double>&, const AttentionResult<double>&, const Gradients<double>&,
                       const TokenRanges&, const TokenRanges&);
template Whole<double> gathered(const std::vector<ParallelResult<double>>&, const Case&, int,
                                const HybridRules&);
template Whole<double> whole_ring(const GradientProblem<double>&, int, const Engines<double>&);
template testing::AssertionResult same_bits(const Whole<double>&, const Whole<double>&);
template testing::AssertionResult agrees(const Whole<double>&, const GradientProblem<double>&);

}  // namespace ring_attention::test
