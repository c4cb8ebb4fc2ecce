#include "support/run.hpp"

#include "ring_attention/cpu/attention_backward.hpp"

namespace ring_attention::test {

std::unique_ptr<Links> thread_links(LoopbackWorld& world, const RankGrid& grid) {
  return std::make_unique<PeerLinks>(world.peers(grid.rank), grid.ulysses, grid.ring);
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
                       const std::function<RankRun<T>(const RankGrid& held)>& part) {
  const Case& what = task.forward.what;
  TeamRun<T> run{zeros<T>(what, task.grad_out != nullptr), {}};
  run.ranks.resize(static_cast<std::size_t>(team.ranks()));
  world.run([&](int rank) { run.ranks[static_cast<std::size_t>(rank)] = part(team.grid(rank)); });
  const Placements tokens = team.tokens(what);
  for (int rank = 0; rank < team.ranks(); ++rank)
    put_rank<T>(run, run.ranks[static_cast<std::size_t>(rank)], team.grid(rank).slice(tokens.queries),
                team.grid(rank).slice(tokens.keys));
  return run;
}

#define RING_ATTENTION_INSTANTIATE(T)                                          \
  template Whole<T> single_device(const GradientProblem<T>&);                  \
  template TeamRun<T> run_threads(const Task<T>&, const Team&, LoopbackWorld&, \
                                  const std::function<RankRun<T>(const RankGrid&)>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE
template RankRun<float> run_rank(const Task<float>&, const Team&, const Device<float>&, Links&, int);
template RankRun<double> run_rank(const Task<double>&, const Team&, const Device<double>&, Links&, int);
template RankRun<float> run_rank(const Task<float>&, const Team&, const Device<float, Bf16>&, Links&, int);

}  // namespace ring_attention::test
