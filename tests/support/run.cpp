#include "support/run.hpp"

#include <algorithm>

#include "ring_attention/cpu/attention_backward.hpp"

namespace ring_attention::test {

std::unique_ptr<Links> thread_links(LoopbackWorld& world, const RankGrid& grid) {
  return std::make_unique<LoopbackLinks>(world, grid.rank, grid.ulysses, grid.ring);
}

template <class T>
Tensor<T> ordered_heads(const HybridRules& rules, const Tensor<T>& x, int ranks, bool back) {
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

template <class T>
Whole<T> single_device(const GradientProblem<T>& problem) {
  const Problem<T>& p = problem.forward;
  Whole<T> all{attention_forward<T>(p.q, p.k, p.v, p.what.scoring, {}, p.bias), {}};
  all.gradients = attention_backward<T>({p.q, all.attended.out, all.attended.lse, problem.grad_out, p.bias},
                                        p.k, p.v, p.what.scoring);
  return all;
}

template <class T>
TeamRun<T> run_threads(const Task<T>& task, const Team& team, LoopbackWorld& world,
                       const std::function<RankRun<T>(const RankGrid& held)>& part,
                       const HybridRules& rules) {
  const Case& what = task.forward.what;
  TeamRun<T> run{zeros<T>(what, task.grad_out != nullptr), {}};
  run.ranks.resize(static_cast<std::size_t>(team.ranks()));
  world.run([&](int rank) { run.ranks[static_cast<std::size_t>(rank)] = part(team.grid(rank)); });
  const Placements tokens = team.tokens(what);
  for (int rank = 0; rank < team.ranks(); ++rank)
    put_rank<T>(run, run.ranks[static_cast<std::size_t>(rank)], rules.slice(team.grid(rank), tokens.queries),
                rules.slice(team.grid(rank), tokens.keys));
  return run;
}

#define RING_ATTENTION_INSTANTIATE(T)                                                \
  template Tensor<T> ordered_heads(const HybridRules&, const Tensor<T>&, int, bool); \
  template Whole<T> single_device(const GradientProblem<T>&);                        \
  template TeamRun<T> run_threads(const Task<T>&, const Team&, LoopbackWorld&,       \
                                  const std::function<RankRun<T>(const RankGrid&)>&, const HybridRules&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE
template RankRun<float> run_rank(const Task<float>&, const Team&, const Device<float>&, Links&, int,
                                 const RunOptions<float>&);
template RankRun<double> run_rank(const Task<double>&, const Team&, const Device<double>&, Links&, int,
                                  const RunOptions<double>&);
template RankRun<float> run_rank(const Task<float>&, const Team&, const Device<float, Bf16>&, Links&, int,
                                 const RunOptions<float>&);

}  // namespace ring_attention::test
