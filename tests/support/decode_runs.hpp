// Decoding on any number of ranks in one process: a prompt in any placement, then one token after the other.
#pragma once

#include "ring_attention/parallel/decode.hpp"
#include "ring_attention/parallel/loopback_all_to_all.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {

/// As many keys as queries; a new token sees no key behind it because there is none.
inline Case decode_case(Index tokens, Index group = 2, const Scoring& scoring = {0.5, Mask::causal()}) {
  return {.batch = 2, .group = group, .queries = tokens, .keys = tokens, .dim = 5, .scoring = scoring};
}

/// The cache of `rank` with the prompt of the problem.
template <class T>
ShardedCache<T> cache_of(const Problem<T>& problem, Index prompt, int rank, int ranks) {
  const Placement placement(problem.what.kind, prompt, ranks);
  const TokenRanges rows = placement.ranges(rank);
  return {problem.what.keys, placement, rank, rows_of(problem.k, rows).view(),
          rows_of(problem.v, rows).view()};
}

/// Appends the next token of the problem, and attends to it with the decode of the library.
template <class T, class Engine = CpuEngine<T>>
AttentionResult<T> next_token(AllToAll auto& link, const Problem<T>& problem, ShardedCache<T>& cache,
                              int threads = 1) {
  const TokenRanges token{{cache.size(), 1, 1}};
  (void)cache.append(rows_of(problem.k, token).view(), rows_of(problem.v, token).view());
  return decode<Engine>(link, View<const T>(rows_of(problem.q, token).view()), cache, problem.what.scoring,
                        {.threads = threads});
}

/// The rows behind the prompt, of one rank.
template <class T, class Engine = CpuEngine<T>>
AttentionResult<T> run_rank_decode(AllToAll auto& link, const Problem<T>& problem, Index prompt,
                                   int threads = 1) {
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

/// Of every rank.
template <class T, class Engine = CpuEngine<T>>
std::vector<AttentionResult<T>> run_loopback_decode(const Problem<T>& problem, Index prompt, int ranks,
                                                    int threads = 1) {
  std::vector<AttentionResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    LoopbackAllToAll link(world, rank, {1, ranks});
    results[static_cast<std::size_t>(rank)] = run_rank_decode<T, Engine>(link, problem, prompt, threads);
  });
  return results;
}

/// What each rank contributes to the last token of the problem.
template <class T, class Engine = CpuEngine<T>>
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

/// The library's merge of these states, as rank 0 gets it.
template <class T>
AttentionResult<T> merged(const std::vector<Partial<T>>& states, const Scoring& scoring) {
  const int ranks = static_cast<int>(states.size());
  AttentionResult<T> result;
  LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    LoopbackAllToAll link(world, rank, {1, ranks});
    AttentionResult<T> own = merge_over_ranks(link, states[static_cast<std::size_t>(rank)], scoring);
    if (rank == 0) result = std::move(own);
  });
  return result;
}

}  // namespace ring_attention::test
