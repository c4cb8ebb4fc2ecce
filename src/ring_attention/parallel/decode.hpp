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

#include "ring_attention/attention/sink.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/cpu/threads.hpp"
#include "ring_attention/parallel/sharded_cache.hpp"
#include "ring_attention/parallel/ulysses.hpp"

namespace ring_attention {

/// Keys of one head that one thread attends to at a time. The result does not depend on the number of threads, because
/// the pieces do not.
inline constexpr Index decode_piece = 1024;

/// The state of the newest token's query over the keys of this rank.
///
/// \param q        `[batch, heads, 1, dim]`: the token at position cache.size() - 1
/// \param options  of the fast engine; a readable one takes its threads, too
/// \returns o `[batch, heads, 1, dim]`, m and l: without the sinks; the identity when the rank has no key
/// \throws Error when q does not belong to the cache, the cache is empty, or the scoring has a dropout
///
/// The g query heads of a KV head are g queries at one position: the same memory, seen as `[batch, kv_heads, g, dim]`.
/// The engine then reads each key once for all of them. Under ALiBi, whose slope is the head's, it reads it g times.
template <class Engine, class T = typename Engine::value_type>
[[nodiscard]] Partial<T> attend_to_cache(View<const T> q, const ShardedCache<T>& cache,
                                         const Scoring& scoring, const CpuOptions& options = {});

/// Merges the states of all ranks, in the order of the ranks, and adds the sinks.
///
/// \param local  of each rank, over its keys: `[batch, heads, 1, dim]`, the same shape on all ranks
/// \returns the attention over the keys of all ranks: on every rank, with the same bits
///
/// Two exchanges: states to the rank that merges their head, results to all. A rank sends
/// batch * ((heads - h) * (dim + 2) + (N - 1) * h * (dim + 1)) elements, where h are the heads that it merges; with
/// equal shares about 2 (N - 1) / N * batch * heads * dim, as an all-reduce. The length of the cache is not in it.
template <class T>
[[nodiscard]] AttentionResult<T> merge_over_ranks(AllToAll auto& link, const Partial<T>& local,
                                                  const Scoring& scoring);

/// Attention of the newest token of each sequence to all keys of the cache. All ranks give the same q and get the same
/// result. The parameters are those of the two functions above.
template <class Engine, class T = typename Engine::value_type>
[[nodiscard]] AttentionResult<T> decode(AllToAll auto& link, View<const T> q, const ShardedCache<T>& cache,
                                        const Scoring& scoring, const CpuOptions& options = {}) {
  return merge_over_ranks(link, attend_to_cache<Engine>(q, cache, scoring, options), scoring);
}

template <class Engine, class T>
Partial<T> attend_to_cache(View<const T> q, const ShardedCache<T>& cache, const Scoring& scoring,
                           const CpuOptions& options) {
  const Shape kv = cache.shape();
  const Index group = require_attention_shapes(q.shape(), kv, kv), position = cache.size() - 1;
  require(q.shape().seq == 1 && position >= 0, "decode: one query, and at least its own key");
  require(!scoring.dropout.drops(), "decode: a dropout is for training");
  const Shape grouped = scoring.has_alibi() ? Shape{1, group, 1, kv.dim} : Shape{1, 1, group, kv.dim};
  const TokenRanges query{{position, 0, grouped.seq}};  // all at one position

  std::vector<std::pair<TokenRange, Index>> pieces;  // and the index of their first token
  for_each_block(cache.ranges(), decode_piece,
                 [&](const TokenRange& tokens, Index first) { pieces.emplace_back(tokens, first); });
  std::vector<Partial<T>> states;
  for (std::size_t i = 0; i < pieces.size(); ++i) states.push_back(Partial<T>::empty(q.shape()));
  std::vector<Scoring> of_head;
  for (Index head = 0; head < kv.heads; ++head)
    of_head.push_back(scoring.of_heads({head * group, (head + 1) * group}));

  const auto count = std::ssize(pieces);
  for_each_task(kv.batch * kv.heads * count, options.threads, [&](Index task, int) {
    const auto piece = static_cast<std::size_t>(task % count);
    const Index batch = task / count / kv.heads, head = task / count % kv.heads;
    auto engine = make_engine<Engine>(of_head[static_cast<std::size_t>(head)], 64, {1, options.isa});
    engine.begin({q.head(batch, head * group), grouped}, query);
    engine.accumulate(cache.keys(batch, head, pieces[piece].second, pieces[piece].first));
    const Partial<T>& state = engine.to_partial();
    std::ranges::copy(state.o.view().elements(), states[piece].o.view().head(batch, head * group));
    std::ranges::copy(state.m.view().elements(), states[piece].m.view().head(batch, head * group));
    std::ranges::copy(state.l.view().elements(), states[piece].l.view().head(batch, head * group));
  });

  Partial<T> sum = Partial<T>::empty(q.shape());
  for (const Partial<T>& state : states) merge(sum, state);
  return sum;
}

namespace detail {

/// The state (o, m, l) of every row as one row of dim + 2 numbers.
template <class T>
[[nodiscard]] Tensor<T> packed(const Partial<T>& state) {
  const Shape& q = state.o.shape();
  Tensor<T> rows({q.batch, q.heads, q.seq, q.dim + 2});
  for (Index row = 0; row < q.batch * q.heads * q.seq; ++row) {
    T* to = std::copy_n(state.o.data() + row * q.dim, q.dim, rows.data() + row * (q.dim + 2));
    to[0] = state.m.data()[row];
    to[1] = state.l.data()[row];
  }
  return rows;
}

/// The inverse, for token `token` of rows [batch, heads, tokens, dim + 2].
template <class T>
[[nodiscard]] Partial<T> unpacked(const Tensor<T>& rows, Index token) {
  const Shape& all = rows.shape();
  auto state = Partial<T>::empty({all.batch, all.heads, 1, all.dim - 2});
  for (Index b = 0; b < all.batch; ++b)
    for (Index h = 0; h < all.heads; ++h) {
      const std::span<const T> row = rows.view().row(b, h, token);
      std::ranges::copy(row.first(row.size() - 2), state.o.view().head(b, h));
      state.m.view()(b, h, 0) = row[row.size() - 2];
      state.l.view()(b, h, 0) = row[row.size() - 1];
    }
  return state;
}

}  // namespace detail

template <class T>
AttentionResult<T> merge_over_ranks(AllToAll auto& link, const Partial<T>& local, const Scoring& scoring) {
  const Shape& q = local.o.shape();
  std::vector<Interval> heads;  // of each rank: those that it merges
  for (Index rank = 0; rank < link.size(); ++rank)
    heads.push_back({rank * q.heads / link.size(), (rank + 1) * q.heads / link.size()});
  const std::vector<Index> one_each(heads.size(), 1);  // to the all-to-all the ranks are tokens of a sequence
  const Interval& own = heads[static_cast<std::size_t>(link.rank())];

  const Tensor<T> states = to_heads<T>(link, detail::packed(local).view(), heads, one_each);
  auto sum = Partial<T>::empty({q.batch, own.end - own.begin, 1, q.dim});
  for (Index rank = 0; rank < link.size(); ++rank) merge(sum, detail::unpacked(states, rank));
  add_sinks(sum, scoring.of_heads(own).sinks);
  const AttentionResult<T> merged = finish(std::move(sum));

  Tensor<T> rows({q.batch, own.end - own.begin, link.size(), q.dim + 1});  // out and lse, once for each rank
  for (Index b = 0; b < q.batch; ++b)
    for (Index h = 0; h < rows.shape().heads; ++h)
      for (Index rank = 0; rank < link.size(); ++rank) {
        const std::span<T> row = rows.view().row(b, h, rank);
        std::ranges::copy(merged.out.view().row(b, h, 0), row.begin());
        row.back() = merged.lse.view()(b, h, 0);
      }
  const Tensor<T> all = to_sequence<T>(link, rows.view(), heads, one_each);
  AttentionResult<T> result{Tensor<T>(q), Tensor<T>(q.per_row())};
  for (Index b = 0; b < q.batch; ++b)
    for (Index h = 0; h < q.heads; ++h) {
      const std::span<const T> row = all.view().row(b, h, 0);
      std::ranges::copy(row.first(row.size() - 1), result.out.view().head(b, h));
      result.lse.view()(b, h, 0) = row.back();
    }
  return result;
}

}  // namespace ring_attention
