// Decoding on any number of ranks in one process: a prompt in any placement, then one token after the other.
#pragma once

#include "ring_attention/parallel/decode/decode.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {

/// As many keys as queries; a new token sees no key behind it because there is none.
inline Case decode_case(Index tokens, Index group = 2, const Scoring& scoring = {0.5, Mask::causal()}) {
  return {.batch = 2, .group = group, .queries = tokens, .keys = tokens, .dim = 5, .scoring = scoring};
}

/// The cache of `rank` with the prompt of the problem.
template <class T>
ShardedCache<T> cache_of(const Problem<T>& problem, Index prompt, int rank, int ranks);

/// Appends the next token of the problem, and attends to it with the decode of the library.
template <class T, class Engine = CpuEngine<T>>
AttentionResult<T> next_token(AllToAll& link, const Problem<T>& problem, ShardedCache<T>& cache,
                              int threads = 1);

/// The rows behind the prompt, of one rank.
template <class T, class Engine = CpuEngine<T>>
AttentionResult<T> run_rank_decode(AllToAll& link, const Problem<T>& problem, Index prompt, int threads = 1);

/// Of every rank.
template <class T, class Engine = CpuEngine<T>>
std::vector<AttentionResult<T>> run_loopback_decode(const Problem<T>& problem, Index prompt, int ranks,
                                                    int threads = 1);

/// What each rank contributes to the last token of the problem.
template <class T, class Engine = CpuEngine<T>>
std::vector<Partial<T>> states_of_last_token(const Problem<T>& problem, Index prompt, int ranks);

/// The library's merge of these states, as rank 0 gets it.
template <class T>
AttentionResult<T> merged(const std::vector<Partial<T>>& states, const Scoring& scoring);

}  // namespace ring_attention::test
