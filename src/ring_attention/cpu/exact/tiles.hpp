/// \file
/// Tiles of a shard in the arrays of one head, for the two engines of this folder.
#pragma once

#include <vector>

#include "ring_attention/attention/bias.hpp"
#include "ring_attention/attention/exact/state.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/attention/scoring.hpp"

namespace ring_attention {

/// The scoring as a readable engine for one head of one element of the batch sees it. The state adds the sinks.
inline Scoring scoring_of(const Scoring& scoring, Index batch, Index head) {
  Scoring own = scoring.of_heads({head, head + 1});
  own.sinks.clear();
  own.dropout.first_batch += batch;
  return own;
}

/// The rows of a tile in an array of one head.
template <class T>
View<T> rows_of(const View<T>& array, Index batch, Index head, const TokenTile& tile) {
  return {array.row(batch, head, tile.first).data(), {1, 1, tile.tokens.count, array.shape().dim}};
}

/// The rows of a tile in a bias (bias.hpp), which may be empty.
template <class T>
View<T> bias_of(const View<T>& bias, Index batch, Index head, const TokenTile& tile) {
  if (bias.size() == 0) return {};
  return {bias_row(bias, batch, head, tile.first), {1, 1, tile.tokens.count, bias.shape().dim}};
}

inline KeyValue<float> keys_of(const KeyValue<float>& kv, Index batch, Index head, const TokenTile& tile) {
  return {rows_of(kv.k, batch, head, tile), rows_of(kv.v, batch, head, tile), {tile.tokens}};
}

inline std::vector<TokenTile> key_tiles(const KeyValue<float>& kv, const Tiling& tiling) {
  require(kv.k.shape().seq == count(kv.ranges), "the keys and their ranges have different numbers of tokens");
  return tiles_of(kv.ranges, tiling);
}

/// Merges rows of sums that a kernel has stored, not wide, `stride` words from one to the next.
inline void merge_rows(ExactRows& into, Index batch, Index head, const TokenTile& tile, float* stored,
                       Index stride) {
  const ExactFormat narrow{into.format().dim, false};
  for (Index i = 0; i < tile.tokens.count; ++i)
    into.at(batch, head, tile.first + i).merge(ExactSum(narrow, stored + i * stride));
}

}  // namespace ring_attention
