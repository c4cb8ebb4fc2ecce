/// \file
/// What the steps of the ladder share: which tiles there are, and bias and mask, pair by pair.
#pragma once

#include "ring_attention/attention/reference.hpp"
#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/tile.hpp"
#include "ring_attention/cpu/threads.hpp"

namespace ring_attention::ladder_detail {

/// Calls visit(tile, worker) for every tile of `rows` queries of every head, its keys still to be chosen. The last
/// tiles, which see most under a causal mask, come first.
/// \param visit  must not throw in workers other than 0
void for_each_query_tile(const Shape& q, const Shape& k, const Shape& v, Index rows, int threads,
                         auto visit) {
  const Index group = require_attention_shapes(q, k, v);
  const Index tiles = (q.seq + rows - 1) / rows;
  for_each_task(q.batch * q.heads * tiles, threads, [&](Index task, int worker) {
    const Index first = (tiles - 1 - task % tiles) * rows, head = task / tiles % q.heads;
    const TokenRange queries{first, 1, std::min(rows, q.seq - first)};
    visit(Tile{task / tiles / q.heads, head, head / group, queries, {}, first, 0}, worker);
  });
}

/// Calls visit(tile, masked) for every block of keys that some query of the tile may see; `masked` is false when all
/// see all of it.
void for_each_key_block(const Scoring& scoring, const Tile& queries, Index keys, Index block, auto visit) {
  Tile tile = queries;
  for (Index first = 0; first < keys; first += block) {
    tile.keys = {first, 1, std::min(block, keys - first)};
    tile.first_key = first;
    const Coverage coverage = scoring.mask.coverage(tile.queries, tile.keys);
    if (coverage != Coverage::none) visit(tile, coverage == Coverage::partial);
  }
}

/// Adds the bias, times `unit`, and hides what the mask hides.
/// \param score  score(i, j) is that of query i and key j of the tile
void adjust(const Scoring& scoring, const Tile& tile, bool masked, double unit, auto score) {
  if (!masked && !scoring.has_alibi()) return;
  for (Index i = 0; i < tile.queries.count; ++i)
    for (Index j = 0; j < tile.keys.count; ++j) {
      const Index query = tile.queries.position(i), key = tile.keys.position(j);
      if (scoring.adds()) score(i, j) += static_cast<float>(unit * scoring.added(tile.head, query, key));
      if (masked && !scoring.mask.allowed(query, key)) score(i, j) = negative_infinity<float>;
    }
}

/// What a query subtracts from its scores: its maximum, but 0 while it has seen no key. -inf - 0 is -inf, and
/// (-inf) - (-inf) would be NaN.
inline float finite_maximum(float m) { return m == negative_infinity<float> ? 0.0F : m; }

}  // namespace ring_attention::ladder_detail
