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
ParallelResult<T> run_rank_parallel(const GradientProblem<T>& problem, const RankGrid& held, bool gathers,
                                    Links& links, const Engines<T>& engines, const HybridRules& rules) {
  const Problem<T>& p = problem.forward;
  const Case& what = p.what;
  const RankGrid grid = rules.computes(held);
  const int ranks = grid.ring.size, sharing = grid.ulysses.size;
  const DeviceOf<T> device(engines, what.block);
  const SharedAttention shared{
      grid,     gathers,    {{what.kind, what.queries, ranks}, {what.kind, what.keys, ranks}},
      what.q(), what.kv(),  what.scoring,
      true,     what.bias()};
  ContextParallel<T> attention(device, links, shared), backward_attention(device, links, shared);
  const HeadLayout& layout = attention.layout();
  const TokenRanges rows = rules.slice(held, what.kind, what.queries);
  const auto queries = [&](const Tensor<T>& all) {
    return layout.queries_to_heads<T>(ordered_heads(rules, rows_of(all, rows), sharing));
  };
  const auto keys = [&](const Tensor<T>& all) {
    return layout.keys_to_heads<T>(rows_of(all, rules.slice(held, what.kind, what.keys)));
  };
  const auto own = [](MaybeOwned<T> array) { return owned(host_memory(), std::move(array)); };
  const auto queries_back = [&](MaybeOwned<T> y) {
    return ordered_heads(rules, own(layout.queries_to_sequence<T>(std::move(y))), sharing, true);
  };
  const Tensor<T> bias_rows = p.bias.size() > 0 ? rows_of(p.bias, rows) : Tensor<T>();
  ParallelResult<T> result;

  const auto q = queries(p.q), k = keys(p.k), v = keys(p.v), bias = layout.bias_to_heads<T>(bias_rows);
  auto forward = attention.begin_forward(q, attention.kv(k, v), bias);
  attention.travel(forward);
  const AttentionResult<T> attended = forward.engine->finish();
  result.attended = {queries_back(attended.out), queries_back(attended.lse)};
  result.forward_kv = attention.hops(Channel::kv);
  result.forward_pieces = attention.pieces();

  const auto grad_out = queries(problem.grad_out);
  const BackwardInputs<T> inputs{q, attended.out, attended.lse, grad_out, bias};
  auto backward = backward_attention.begin_backward(inputs, backward_attention.kv(k, v));
  backward_attention.travel(backward);
  const HeadShare share(what.q().heads, what.kv_heads, sharing);
  if (rules.returns_nothing(share.kv, static_cast<std::size_t>(links.ulysses().rank())))
    for (const View<T>& sum : {backward.sums.k(), backward.sums.v()}) std::ranges::fill(sum.elements(), T{0});
  auto gradients = backward_attention.finish(backward);
  result.gradients = {
      ordered_heads(rules, own(std::move(gradients.q)), sharing, true), own(std::move(gradients.k)),
      own(std::move(gradients.v)), own(std::move(gradients.bias)),
      sink_gradient<T>({{}, result.attended.out, result.attended.lse, rows_of(problem.grad_out, rows)},
                       what.scoring.sinks)};
  result.kv = backward_attention.hops(Channel::kv);
  result.gradient = backward_attention.hops(Channel::gradients);
  result.pieces = backward_attention.pieces();
  return result;
}

namespace {

template <class T>
std::vector<ParallelResult<T>> run_loopback_parallel(const GradientProblem<T>& problem, int ranks,
                                                     int ulysses, bool gathers, const Engines<T>& engines,
                                                     const HybridRules& rules) {
  std::vector<ParallelResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    const RankGrid held(rank, ranks, ulysses), grid = rules.computes(held);
    LoopbackLinks links(world, rank, grid.ulysses, grid.ring);
    results[static_cast<std::size_t>(rank)] =
        run_rank_parallel(problem, held, gathers, links, engines, rules);
  });
  return results;
}

}  // namespace

template <class T>
std::vector<ParallelResult<T>> run_loopback_hybrid(const GradientProblem<T>& problem, int ulysses, int rings,
                                                   const Engines<T>& engines, const HybridRules& rules) {
  return run_loopback_parallel(problem, ulysses * rings, ulysses, false, engines, rules);
}

template <class T>
std::vector<ParallelResult<T>> run_loopback_all_gather(const GradientProblem<T>& problem, int ranks,
                                                       const Engines<T>& engines) {
  return run_loopback_parallel(problem, ranks, 1, true, engines, {});
}

template <class T>
Whole<T> zeros(const Case& what) {
  return {{Tensor<T>(what.q()), Tensor<T>(what.q().per_row())},
          {Tensor<T>(what.q()), Tensor<T>(what.kv()), Tensor<T>(what.kv()),
           Tensor<T>(what.bias().value_or(Shape{})), std::vector<double>(what.scoring.sinks.size())}};
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
    const RankGrid held(rank, ranks, ulysses);
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

#define RING_ATTENTION_INSTANTIATE(T)                                                                      \
  template ParallelResult<T> run_rank_parallel(const GradientProblem<T>&, const RankGrid&, bool, Links&,   \
                                               const Engines<T>&, const HybridRules&);                     \
  template std::vector<ParallelResult<T>> run_loopback_hybrid(const GradientProblem<T>&, int, int,         \
                                                              const Engines<T>&, const HybridRules&);      \
  template std::vector<ParallelResult<T>> run_loopback_all_gather(const GradientProblem<T>&, int,          \
                                                                  const Engines<T>&);                      \
  template Whole<T> zeros(const Case&);                                                                    \
  template void put_rank(Whole<T>&, const AttentionResult<T>&, const Gradients<T>&, const TokenRanges&,    \
                         const TokenRanges&);                                                              \
  template Whole<T> gathered(const std::vector<ParallelResult<T>>&, const Case&, int, const HybridRules&); \
  template Whole<T> whole_ring(const GradientProblem<T>&, int, const Engines<T>&);                         \
  template testing::AssertionResult same_bits(const Whole<T>&, const Whole<T>&);                           \
  template testing::AssertionResult agrees(const Whole<T>&, const GradientProblem<T>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention::test
