#include "ring_attention/parallel/decode/decode.hpp"

#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/attention/sink.hpp"
#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {

namespace {

/// The query heads of one KV head: as rows of one head, or under ALiBi as heads of one row.
struct GroupedQuery {
  Index group;
  Shape shape;
  TokenRanges range;  // all at one position
};

/// \throws Error when q does not belong to the cache, or for a dropout
GroupedQuery query_of_kv_head(const Shape& q, const KvShape& kv, Index position, const Scoring& scoring) {
  const Index group = require_attention_shapes(q, kv, kv.values());
  require(q.seq == 1 && position >= 0, "decode: one query, and at least its own key");
  require(!scoring.dropout.drops(), "decode: dropout is for training only");
  const Shape shape = scoring.has_alibi() ? Shape{1, group, 1, kv.dim} : Shape{1, 1, group, kv.dim};
  return {group, shape, {{position, 0, shape.seq}}};
}

}  // namespace

template <class Engine, class T>
Partial<T> attend_to_cache(View<const T> q, const ShardedCache<T>& cache, const Scoring& scoring,
                           const CpuOptions& options) {
  const KvShape kv = cache.shape();
  const Shape out = q.shape().with_dim(kv.value_dim);
  const auto [group, grouped, query] = query_of_kv_head(q.shape(), kv, cache.size() - 1, scoring);

  std::vector<std::pair<TokenRange, Index>> pieces;  // and the index of their first token
  for_each_block(cache.ranges(), decode_piece,
                 [&](const TokenRange& tokens, Index first) { pieces.emplace_back(tokens, first); });
  std::vector<Partial<T>> states;
  for (std::size_t i = 0; i < pieces.size(); ++i) states.push_back(Partial<T>::empty(out));
  std::vector<Scoring> of_head;
  for (Index head = 0; head < kv.heads; ++head)
    of_head.push_back(scoring.of_heads({head * group, (head + 1) * group}));

  const auto count = std::ssize(pieces);
  for_each_task(kv.batch * kv.heads * count, options.threads, [&](Index task, int) {
    const auto piece = static_cast<std::size_t>(task % count);
    const Index batch = task / count / kv.heads, head = task / count % kv.heads;
    auto engine = make_engine<Engine>(of_head[static_cast<std::size_t>(head)], 64, {1, options.isa});
    engine.begin({q.head(batch, head * group), grouped}, query, {}, kv.value_dim);
    engine.accumulate(cache.keys(batch, head, pieces[piece].second, pieces[piece].first));
    const Partial<T>& state = engine.to_partial();
    std::ranges::copy(state.o.view().elements(), states[piece].o.view().head(batch, head * group));
    std::ranges::copy(state.m.view().elements(), states[piece].m.view().head(batch, head * group));
    std::ranges::copy(state.l.view().elements(), states[piece].l.view().head(batch, head * group));
  });

  Partial<T> sum = Partial<T>::empty(out);
  for (const Partial<T>& state : states) merge(sum, state);
  return sum;
}

namespace {

/// The state (o, m, l) of every row as one row of dim + 2 numbers.
template <class T>
Tensor<T> packed(const Partial<T>& state) {
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
Partial<T> state_of(const Tensor<T>& rows, Index token) {
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

/// Out and lse of every row, once for each rank: `[batch, heads, ranks, dim + 1]`.
template <class T>
Tensor<T> once_for_each_rank(const AttentionResult<T>& result, Index ranks) {
  const Shape& all = result.out.shape();
  Tensor<T> rows({all.batch, all.heads, ranks, all.dim + 1});
  for (Index b = 0; b < all.batch; ++b)
    for (Index h = 0; h < all.heads; ++h)
      for (Index rank = 0; rank < ranks; ++rank) {
        const std::span<T> row = rows.view().row(b, h, rank);
        std::ranges::copy(result.out.view().row(b, h, 0), row.begin());
        row.back() = result.lse.view()(b, h, 0);
      }
  return rows;
}

/// \param states  those of some heads, of all ranks: `[batch, heads, ranks, dim + 2]`
/// \param sinks   of these heads
/// \returns out and lse of every row, once for each rank: `[batch, heads, ranks, dim + 1]`
template <class T>
Tensor<T> merged(const Tensor<T>& states, const std::vector<double>& sinks) {
  const Shape& all = states.shape();
  auto sum = Partial<T>::empty({all.batch, all.heads, 1, all.dim - 2});
  for (Index rank = 0; rank < all.seq; ++rank) merge(sum, state_of(states, rank));
  add_sinks(sum, sinks);
  return once_for_each_rank(finish(std::move(sum)), all.seq);
}

/// \param rows  out and lse: `[batch, heads, 1, dim + 1]`
template <class T>
AttentionResult<T> unpacked(const Tensor<T>& rows) {
  const Shape& all = rows.shape();
  const Shape q{all.batch, all.heads, 1, all.dim - 1};
  AttentionResult<T> result{Tensor<T>(q), Tensor<T>(q.per_row())};
  for (Index b = 0; b < q.batch; ++b)
    for (Index h = 0; h < q.heads; ++h) {
      const std::span<const T> row = rows.view().row(b, h, 0);
      std::ranges::copy(row.first(row.size() - 1), result.out.view().head(b, h));
      result.lse.view()(b, h, 0) = row.back();
    }
  return result;
}

}  // namespace

namespace {

/// \param states  of all heads, `[batch, heads, 1, words]`
/// \param merge   merged() for states of this kind
template <class T>
AttentionResult<T> merge_by_heads(AllToAll& link, const Tensor<T>& states, const Scoring& scoring,
                                  const auto& merge) {
  const Index all_heads = states.shape().heads;
  std::vector<Interval> heads;  // of each rank: those that it merges
  for (Index rank = 0; rank < link.size(); ++rank)
    heads.push_back({rank * all_heads / link.size(), (rank + 1) * all_heads / link.size()});
  const std::vector<Index> one_each(heads.size(), 1);  // to the all-to-all the ranks are tokens of a sequence
  const Interval& own = heads[static_cast<std::size_t>(link.rank())];

  const Tensor<T> of_ranks = to_heads<T>(link, states.view(), heads, one_each);
  const Tensor<T> rows = merge(of_ranks, scoring.of_heads(own).sinks);
  return unpacked(to_sequence<T>(link, rows.view(), heads, one_each));
}

}  // namespace

template <class T>
AttentionResult<T> merge_over_ranks(AllToAll& link, const Partial<T>& local, const Scoring& scoring) {
  return merge_by_heads(link, packed(local), scoring, merged<T>);
}

ExactPartial attend_to_cache(View<const float> q, const ShardedCache<float>& cache, const Scoring& scoring,
                             const CpuOptions& options) {
  const KvShape kv = cache.shape();
  const Shape out = q.shape().with_dim(kv.value_dim);
  const auto [group, grouped, query] = query_of_kv_head(q.shape(), kv, cache.size() - 1, scoring);
  const Tiling tiling(options.same_bits, scoring.mask.documents);
  const std::vector<TokenTile> tiles = tiles_of(cache.ranges(), tiling);
  const Index at_once = std::max<Index>(decode_piece / options.same_bits, 1), all = std::ssize(tiles),
              pieces = (all + at_once - 1) / at_once;

  // A task is some tiles of one KV head. Which ones, and in which order they are merged, makes no difference.
  const Index terms = (std::ssize(tiling.cuts(cache.size())) - 1) * scoring.mask.parts();
  const bool wide = terms >= ExactFormat::most_terms;
  std::vector<ExactPartial> states;
  for (Index i = 0; i < pieces; ++i) states.push_back(ExactPartial::empty(out, wide));
  for_each_task(kv.batch * kv.heads * pieces, options.threads, [&](Index task, int) {
    const Index piece = task % pieces, batch = task / pieces / kv.heads, head = task / pieces % kv.heads;
    SameBitsEngine engine(scoring.of_heads({head * group, (head + 1) * group}),
                          {1, options.isa, options.same_bits});
    engine.begin({q.head(batch, head * group), grouped}, query, {}, kv.value_dim);
    for (Index i = piece * at_once; i < std::min((piece + 1) * at_once, all); ++i) {
      const TokenTile& tile = tiles[static_cast<std::size_t>(i)];
      engine.accumulate(cache.keys(batch, head, tile.first, tile.tokens));
    }
    ExactPartial state = engine.take_state();
    for (Index i = 0; i < group; ++i) {
      const bool one_head = scoring.has_alibi();  // then the group are heads, else rows
      const Index from_head = one_head ? i : 0, from_row = one_head ? 0 : i;
      ExactPartial& to = states[static_cast<std::size_t>(piece)];
      to.o.at(batch, head * group + i, 0).merge(state.o.at(0, from_head, from_row));
      to.l.at(batch, head * group + i, 0).merge(state.l.at(0, from_head, from_row));
    }
  });
  ExactPartial sum = ExactPartial::empty(out, wide);
  for (const ExactPartial& state : states) sum.merge(state);
  return sum;
}

AttentionResult<float> merge_over_ranks(AllToAll& link, ExactPartial& local, const Scoring& scoring) {
  const auto [batch, all_heads, seq, words] = local.o.words().shape();
  const Index l_words = local.l.words().shape().dim;
  Tensor<float> packed({batch, all_heads, seq, words + l_words});  // as packed() does
  for (Index row = 0; row < batch * all_heads * seq; ++row) {
    float* to =
        std::copy_n(local.o.words().data() + row * words, words, packed.data() + row * (words + l_words));
    std::copy_n(local.l.words().data() + row * l_words, l_words, to);
  }
  return merge_by_heads(link, packed, scoring, [&](const Tensor<float>& states, const auto& sinks) {
    const Shape& all = states.shape();
    const Index dim = local.o.format().dim;
    auto sum = ExactPartial::empty({all.batch, all.heads, 1, dim}, local.o.format().wide);
    for (Index b = 0; b < all.batch; ++b)
      for (Index h = 0; h < all.heads; ++h)
        for (Index rank = 0; rank < all.seq; ++rank) {
          const float* row = states.view().row(b, h, rank).data();
          sum.o.at(b, h, 0).merge(row);
          sum.l.at(b, h, 0).merge(row + words);
        }
    return once_for_each_rank(sum.finish(sinks), all.seq);
  });
}

template AttentionResult<float> merge_over_ranks(AllToAll&, const Partial<float>&, const Scoring&);
template AttentionResult<double> merge_over_ranks(AllToAll&, const Partial<double>&, const Scoring&);
template Partial<float> attend_to_cache<CpuEngine<float>>(View<const float>, const ShardedCache<float>&,
                                                          const Scoring&, const CpuOptions&);
template Partial<double> attend_to_cache<CpuEngine<double>>(View<const double>, const ShardedCache<double>&,
                                                            const Scoring&, const CpuOptions&);
template Partial<float> attend_to_cache<BlockwiseEngine<float>>(View<const float>, const ShardedCache<float>&,
                                                                const Scoring&, const CpuOptions&);
template Partial<double> attend_to_cache<BlockwiseEngine<double>>(View<const double>,
                                                                  const ShardedCache<double>&, const Scoring&,
                                                                  const CpuOptions&);

}  // namespace ring_attention
