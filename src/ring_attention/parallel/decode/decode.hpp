/// \file
/// Decoding: one new query of a sequence against keys that are sharded over ranks.
///
/// A ring would send the cache past the query. Here the state (o, m, l) of the query travels: each rank attends to its
/// own keys, and the states merge, as those of two hops of a ring merge. The same merge joins the pieces into which a
/// rank cuts its keys for its threads. So one algebra serves the thread, the rank and the machine.
///
/// Source: Dao et al., Flash-Decoding (2023), for the pieces; Shyam et al., Tree Attention, arXiv 2408.04093, and Bhatia
/// et al., Helix Parallelism, arXiv 2507.07120, for ranks: the all-to-all by heads is Helix's.
#pragma once

#include "ring_attention/cpu/exact/forward.hpp"
#include "ring_attention/parallel/collectives/heads_exchange.hpp"
#include "ring_attention/parallel/decode/sharded_cache.hpp"

namespace ring_attention {

/// Keys of one head that one thread attends to at a time. The result does not depend on the number of threads, because
/// the pieces do not.
inline constexpr Index decode_piece = 1024;

/// The state of the newest token's query over the keys of this rank.
///
/// \param q        `[batch, heads, 1, dim]`: the token at position cache.size() - 1
/// \tparam Engine  CpuEngine<T> or BlockwiseEngine<T>
/// \param options  of the fast engine; a readable one takes its threads, too
/// \returns o `[batch, heads, 1, value_dim]`, m and l: without the sinks; the identity when the rank has no key
/// \throws Error when q does not belong to the cache, the cache is empty, or the scoring has a dropout
///
/// The g query heads of a KV head are g queries at one position: the same memory, seen as `[batch, kv_heads, g, dim]`.
/// The engine then reads each key once for all of them. Under ALiBi, whose slope is the head's, it reads it g times.
template <class Engine, class T = typename Engine::value_type>
[[nodiscard]] Partial<T> attend_to_cache(View<const T> q, const ShardedCache<T>& cache,
                                         const Scoring& scoring, const CpuOptions& options = {});

/// Merges the states of all ranks, in the order of the ranks, and adds the sinks.
///
/// \param local  of each rank, over its keys: `[batch, heads, 1, value_dim]`, the same shape on all ranks
/// \returns the attention over the keys of all ranks: on every rank, with the same bits
///
/// Two exchanges: states to the rank that merges their head, results to all. A rank sends
/// batch * ((heads - h) * (value_dim + 2) + (N - 1) * h * (value_dim + 1)) elements, where h are the heads that it merges; with
/// equal shares about 2 (N - 1) / N * batch * heads * value_dim, as an all-reduce. The length of the cache is not in it.
template <class T>
[[nodiscard]] AttentionResult<T> merge_over_ranks(AllToAll& link, const Partial<T>& local,
                                                  const Scoring& scoring);

/// The state as exact sums, whose bits do not depend on the number of ranks and threads: those of the query's row in a
/// forward (cpu/exact/forward.hpp).
/// \param cache    of whole tiles of options.same_bits tokens
[[nodiscard]] ExactPartial attend_to_cache(View<const float> q, const ShardedCache<float>& cache,
                                           const Scoring& scoring, const CpuOptions& options);
[[nodiscard]] AttentionResult<float> merge_over_ranks(AllToAll& link, ExactPartial& local,
                                                      const Scoring& scoring);

/// Attention of the newest token of each sequence to all keys of the cache. All ranks give the same q and get the same
/// result. The parameters are those of the functions above.
template <class Engine, class T = typename Engine::value_type>
[[nodiscard]] AttentionResult<T> decode(AllToAll& link, View<const T> q, const ShardedCache<T>& cache,
                                        const Scoring& scoring, const CpuOptions& options = {}) {
  if constexpr (std::is_same_v<Engine, CpuEngine<float>>)
    if (options.same_bits > 0) {
      ExactPartial local = attend_to_cache(q, cache, scoring, options);
      return merge_over_ranks(link, local, scoring);
    }
  return merge_over_ranks(link, attend_to_cache<Engine>(q, cache, scoring, options), scoring);
}

}  // namespace ring_attention
