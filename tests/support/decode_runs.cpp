#include "support/decode_runs.hpp"

#include "ring_attention/attention/blockwise.hpp"

namespace ring_attention::test {

template <class T>
ShardedCache<T> cache_of(const Problem<T>& problem, Index prompt, int rank, int ranks) {
  const Placement placement(problem.what.kind, prompt, ranks);
  const TokenRanges rows = placement.ranges(rank);
  return {problem.what.keys, placement, rank, rows_of(problem.k, rows).view(),
          rows_of(problem.v, rows).view()};
}

template <class T, class Engine>
AttentionResult<T> next_token(AllToAll& link, const Problem<T>& problem, ShardedCache<T>& cache,
                              int threads) {
  const TokenRanges token{{cache.size(), 1, 1}};
  (void)cache.append(rows_of(problem.k, token).view(), rows_of(problem.v, token).view());
  return decode<Engine>(link, View<const T>(rows_of(problem.q, token).view()), cache, problem.what.scoring,
                        {.threads = threads});
}

template <class T, class Engine>
AttentionResult<T> run_rank_decode(AllToAll& link, const Problem<T>& problem, Index prompt, int threads) {
  const Index tokens = problem.what.keys - prompt;
  AttentionResult<T> all{Tensor<T>(problem.q.shape().with_seq(tokens)),
                         Tensor<T>(problem.q.shape().with_seq(tokens).per_row())};
  auto cache = cache_of(problem, prompt, link.rank(), link.size());
  for (Index token = 0; token < tokens; ++token) {
    const AttentionResult<T> one = next_token<T, Engine>(link, problem, cache, threads);
    put_rows(all.out, one.out, {{token, 1, 1}});
    put_rows(all.lse, one.lse, {{token, 1, 1}});
  }
  return all;
}

template <class T, class Engine>
std::vector<AttentionResult<T>> run_loopback_decode(const Problem<T>& problem, Index prompt, int ranks,
                                                    int threads) {
  std::vector<AttentionResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    PeerAllToAll link(world.peers(rank), Axis{1, ranks});
    results[static_cast<std::size_t>(rank)] = run_rank_decode<T, Engine>(link, problem, prompt, threads);
  });
  return results;
}

template <class T, class Engine>
std::vector<Partial<T>> states_of_last_token(const Problem<T>& problem, Index prompt, int ranks) {
  std::vector<Partial<T>> states;
  const Tensor<T> q = rows_of(problem.q, {{problem.what.queries - 1, 1, 1}});
  for (int rank = 0; rank < ranks; ++rank) {
    auto cache = cache_of(problem, prompt, rank, ranks);
    while (cache.size() < problem.what.keys) {
      const TokenRanges token{{cache.size(), 1, 1}};
      (void)cache.append(rows_of(problem.k, token).view(), rows_of(problem.v, token).view());
    }
    states.push_back(attend_to_cache<Engine>(q.view(), cache, problem.what.scoring));
  }
  return states;
}

template <class T>
AttentionResult<T> merged(const std::vector<Partial<T>>& states, const Scoring& scoring) {
  const int ranks = static_cast<int>(states.size());
  AttentionResult<T> result;
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    PeerAllToAll link(world.peers(rank), Axis{1, ranks});
    AttentionResult<T> own = merge_over_ranks(link, states[static_cast<std::size_t>(rank)], scoring);
    if (rank == 0) result = std::move(own);
  });
  return result;
}

#define RING_ATTENTION_INSTANTIATE(T)                                                                     \
  template ShardedCache<T> cache_of(const Problem<T>&, Index, int, int);                                  \
  template AttentionResult<T> merged(const std::vector<Partial<T>>&, const Scoring&);                     \
  template AttentionResult<T> next_token<T, CpuEngine<T>>(AllToAll&, const Problem<T>&, ShardedCache<T>&, \
                                                          int);                                           \
  template AttentionResult<T> run_rank_decode<T, CpuEngine<T>>(AllToAll&, const Problem<T>&, Index, int); \
  template std::vector<AttentionResult<T>> run_loopback_decode<T, CpuEngine<T>>(const Problem<T>&, Index, \
                                                                                int, int);                \
  template std::vector<Partial<T>> states_of_last_token<T, CpuEngine<T>>(const Problem<T>&, Index, int);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE
template AttentionResult<double> next_token<double, BlockwiseEngine<double>>(AllToAll&,
                                                                             const Problem<double>&,
                                                                             ShardedCache<double>&, int);
template AttentionResult<double> run_rank_decode<double, BlockwiseEngine<double>>(AllToAll&,
                                                                                  const Problem<double>&,
                                                                                  Index, int);
template std::vector<AttentionResult<double>> run_loopback_decode<double, BlockwiseEngine<double>>(
    const Problem<double>&, Index, int, int);
template std::vector<Partial<double>> states_of_last_token<double, BlockwiseEngine<double>>(
    const Problem<double>&, Index, int);

}  // namespace ring_attention::test
