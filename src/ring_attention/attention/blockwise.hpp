/// \file
/// The readable engine: attention tile by tile, with an online softmax over the tiles of keys.
///
/// Source: Dao et al., FlashAttention, arXiv 2205.14135, algorithm 1 (loops exchanged as in
/// FlashAttention-2); Liu et al., arXiv 2310.01889, section 3. Memory beyond inputs and outputs is one
/// tile of scores, for any length.
#pragma once

#include <optional>
#include <utility>

#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/sink.hpp"
#include "ring_attention/attention/terms.hpp"
#include "ring_attention/attention/tile.hpp"

namespace ring_attention {

/// Attention of a fixed set of queries over keys that arrive in pieces.
///
/// begin(q), then accumulate(kv) once per piece in any number and order, then finish().
/// T is float or double, and all arithmetic is in T.
template <class T>
class BlockwiseEngine : public Engine<T> {
 public:
  using value_type = T;

  /// \param block  queries and keys in a tile
  explicit BlockwiseEngine(const Scoring& scoring, Index block = 64) : scoring_(scoring), block_(block) {}

  /// Starts with no key seen. `q` [batch, heads, seq, dim] and the terms of these queries stay with the caller and must
  /// outlive finish(); the tokens of q are at `ranges`. \param value_dim  columns of v; none given: as many as q has
  void begin(View<const T> q, TokenRanges ranges, View<const T> bias = {},
             std::optional<Index> value_dim = {});

  /// Merges these keys into the state. Calls `progress` after every tile.
  /// \throws Error when the shapes do not belong together.
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override;

  /// Adds the sinks; out = o / l and lse = m + log l. Ends the work on these queries.
  [[nodiscard]] AttentionResult<T> finish() override;

  /// The state (o, m, l) as it is now.
  [[nodiscard]] const Partial<T>& to_partial() const { return partial_; }

 private:
  /// Merges the keys of a tile whose scores are in s.
  void merge_tile(const KeyValue<T>& kv, const Tile& tile);
  /// Replaces row i of the scores by p = e^{s - m} with the tile's own m, and returns (m, l).
  SoftmaxState<T> exponentiate_row(Index i);
  /// Multiplies the weights p of the values by the factors of the dropout. It follows the softmax: the sums l keep the
  /// whole p.
  void drop(const Tile& tile);

  Scoring scoring_;
  Index block_;
  View<const T> q_, bias_;
  TokenRanges q_ranges_;
  Partial<T> partial_;
  Matrix<T> s_;                          // one tile of scores, then of p
  Matrix<T> o_;                          // p v of that tile
  Matrix<T> factors_;                    // of its dropout
  std::vector<SoftmaxState<T>> states_;  // (m, l) of its rows
};

template <class T>
void BlockwiseEngine<T>::begin(View<const T> q, TokenRanges ranges, View<const T> bias,
                               std::optional<Index> value_dim) {
  require_queries(q.shape(), ranges, bias.shape());
  q_ = q;
  bias_ = bias;
  q_ranges_ = std::move(ranges);
  partial_ = Partial<T>::empty(q.shape().with_dim(value_dim.value_or(q.shape().dim)));
}

template <class T>
void BlockwiseEngine<T>::accumulate(const KeyValue<T>& kv, const Progress& progress) {
  const Index group = require_keys({q_.shape(), partial_.o.shape(), bias_.shape()}, kv);
  for_each_tile(q_.shape(), q_ranges_, kv.ranges, block_, group, [&](const Tile& tile) {
    if (score_tile(scoring_, tile, q_, kv.k, bias_, s_)) merge_tile(kv, tile);
    if (progress) progress();
  });
}

template <class T>
AttentionResult<T> BlockwiseEngine<T>::finish() {
  add_sinks(partial_, scoring_.sinks);
  return ring_attention::finish(std::move(partial_));
}

template <class T>
void BlockwiseEngine<T>::merge_tile(const KeyValue<T>& kv, const Tile& tile) {
  states_.resize(static_cast<std::size_t>(s_.rows()));
  for (Index i = 0; i < s_.rows(); ++i) states_[static_cast<std::size_t>(i)] = exponentiate_row(i);
  if (scoring_.dropout.drops()) drop(tile);
  o_.setZero(s_.rows(), kv.v.shape().dim);
  add_product<T>(o_, 1, s_, tile.of_keys(kv.v));  // s now holds p = e^{s - m}

  for (Index i = 0; i < s_.rows(); ++i) {
    const Index row = tile.first_query + i;
    T& m = partial_.m.view()(tile.batch, tile.head, row);
    T& l = partial_.l.view()(tile.batch, tile.head, row);
    SoftmaxState<T> state{m, l};
    merge_row(state, partial_.o.view().row(tile.batch, tile.head, row), states_[static_cast<std::size_t>(i)],
              std::span<const T>(o_.row(i).data(), static_cast<std::size_t>(o_.cols())));
    m = state.m;
    l = state.l;
  }
}

template <class T>
SoftmaxState<T> BlockwiseEngine<T>::exponentiate_row(Index i) {
  SoftmaxState<T> state{negative_infinity<T>, 0};
  for (Index j = 0; j < s_.cols(); ++j) state.m = std::max(state.m, s_(i, j));
  for (Index j = 0; j < s_.cols(); ++j) {
    s_(i, j) = rescale(s_(i, j), state.m);
    state.l += s_(i, j);
  }
  return state;
}

template <class T>
void BlockwiseEngine<T>::drop(const Tile& tile) {
  dropout_tile(scoring_.dropout, tile, factors_);
  s_ = s_.cwiseProduct(factors_);
}

/// Single device: begin, one accumulate, finish.
template <class T>
[[nodiscard]] AttentionResult<T> blockwise_forward(View<const T> q, View<const T> k, View<const T> v,
                                                   const Scoring& scoring, Index block = 64,
                                                   View<const T> bias = {}) {
  BlockwiseEngine<T> engine(scoring, block);
  engine.begin(q, whole(q.shape().seq), bias, v.shape().dim);
  engine.accumulate({k, v, whole(k.shape().seq)});
  return engine.finish();
}

extern template class BlockwiseEngine<float>;
extern template class BlockwiseEngine<double>;

}  // namespace ring_attention
