/// \file
/// Tiles: the pieces in which the readable engines compute, forward and backward.
#pragma once

#include "ring_attention/attention/bias.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/blocks.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// Some queries of one head against some keys of its KV head.
struct Tile {
  Index batch, head, kv_head;
  TokenRange queries, keys;      // positions of its tokens in the sequence
  Index first_query, first_key;  // their index in memory

  /// The tile's rows of an array of queries, [queries, dim], without a copy. Likewise for keys.
  template <class T>
  [[nodiscard]] MatrixMap<T> of_queries(const View<T>& array) const {
    return matrix(array, batch, head, first_query, queries.count);
  }
  template <class T>
  [[nodiscard]] MatrixMap<T> of_keys(const View<T>& array) const {
    return matrix(array, batch, kv_head, first_key, keys.count);
  }
  /// Its pairs of a bias or of the gradient of one, [queries, keys]: the columns are positions.
  template <class T>
  [[nodiscard]] StridedMap<T> of_pairs(const View<T>& bias) const {
    return {bias_row(bias, batch, head, first_query) + keys.begin,
            queries.count,
            keys.count,
            {bias.shape().dim, keys.stride}};
  }
};

/// Every tile of queries `q` at `q_ranges` against keys at `k_ranges`, head by head, queries outside, keys inside.
/// \param group  query heads that share one KV head: contiguous ones (FlashAttention, Llama)
template <class Visit>
void for_each_tile(const Shape& q, const TokenRanges& q_ranges, const TokenRanges& k_ranges, Index block,
                   Index group, Visit visit) {
  require(block >= 1, "a tile has at least one token");
  for (Index b = 0; b < q.batch; ++b)
    for (Index h = 0; h < q.heads; ++h)
      for_each_block(q_ranges, block, [&](const TokenRange& queries, Index first_query) {
        for_each_block(k_ranges, block, [&](const TokenRange& keys, Index first_key) {
          visit(Tile{b, h, h / group, queries, keys, first_query, first_key});
        });
      });
}

/// s = capped(scale * q k^T) of a tile, [queries, keys]: the scores before a bias and the mask.
template <class T>
void capped_products(const Scoring& scoring, const Tile& tile, View<const T> q, View<const T> k,
                     Matrix<T>& s) {
  s.setZero(tile.queries.count, tile.keys.count);
  add_product<T>(s, 1, tile.of_queries(q), tile.of_keys(k).transpose());
  s *= static_cast<T>(scoring.scale);
  if (scoring.caps()) s = s.unaryExpr([&](T product) { return scoring.capped(product); });
}

/// The scores of a tile: s = capped(scale * q k^T) + bias, [queries, keys], and -inf where the mask hides the key.
/// Returns false, and does not change `s`, when the mask hides the whole tile.
/// \param bias  of the queries (bias.hpp), or empty
template <class T>
[[nodiscard]] bool score_tile(const Scoring& scoring, const Tile& tile, View<const T> q, View<const T> k,
                              View<const T> bias, Matrix<T>& s) {
  const Coverage coverage = scoring.mask.coverage(tile.queries, tile.keys);
  if (coverage == Coverage::none) return false;
  capped_products(scoring, tile, q, k, s);
  if (bias.size() > 0) s += tile.of_pairs(bias);
  for (Index i = 0; i < s.rows(); ++i) {
    const Index query = tile.queries.position(i);
    if (scoring.adds())
      for (Index j = 0; j < s.cols(); ++j)
        s(i, j) += static_cast<T>(scoring.added(tile.head, query, tile.keys.position(j)));
    if (coverage == Coverage::partial)
      for (Index j = 0; j < s.cols(); ++j)
        if (!scoring.mask.allowed(query, tile.keys.position(j))) s(i, j) = negative_infinity<T>;
  }
  return true;
}

/// The factors of the dropout, [queries, keys]: 0 for a dropped pair of the tile, dropout.scale() for a kept one.
template <class T>
void dropout_tile(const Dropout& dropout, const Tile& tile, Matrix<T>& factors) {
  const auto kept = static_cast<T>(dropout.scale());
  factors.resize(tile.queries.count, tile.keys.count);
  for (Index i = 0; i < factors.rows(); ++i) {
    const DropoutRow row = dropout.row(tile.batch, tile.head, tile.queries.position(i));
    for (Index j = 0; j < factors.cols(); ++j)
      factors(i, j) = dropout.keeps(row, tile.keys.position(j)) ? kept : T{0};
  }
}

}  // namespace ring_attention
