/// \file
/// `Mask`: which query may see which key, as a predicate on global token positions.
///
/// Because positions are global, every placement of tokens on ranks, every uneven length and every step
/// of the ring is right by construction.
#pragma once

#include <limits>

#include "ring_attention/core/run.hpp"

namespace ring_attention {

/// What a mask does to all pairs of two runs.
enum class Coverage {
  none,    ///< every pair is masked: skip
  full,    ///< no pair is masked: no test needed
  partial  ///< test each pair
};

/// A band of visible keys around each query. The default hides nothing.
///
/// Query i stands at key position i + offset. With Sq queries and Sk keys, offset = Sk - Sq aligns the
/// last query with the last key (bottom-right, as FlashAttention does from 2.1 on).
struct Mask {
  static constexpr Index unlimited = std::numeric_limits<Index>::max() / 4;

  Index left = unlimited;   ///< how many keys before its own position a query sees
  Index right = unlimited;  ///< how many keys after it; 0 is causal
  Index offset = 0;         ///< Sk - Sq, unless the user says otherwise

  [[nodiscard]] static constexpr Mask causal(Index offset = 0) { return {unlimited, 0, offset}; }

  /// May the query at global position `query` see the key at global position `key`?
  [[nodiscard]] constexpr bool allowed(Index query, Index key) const {
    const Index distance = key - (query + offset);
    return -left <= distance && distance <= right;
  }

  /// Decides all pairs at once, from the ends of both runs, which must not be empty.
  [[nodiscard]] constexpr Coverage coverage(const Run& queries, const Run& keys) const {
    const Index nearest = keys.first() - (queries.last() + offset);   // the smallest distance
    const Index farthest = keys.last() - (queries.first() + offset);  // the largest
    if (nearest > right || farthest < -left) return Coverage::none;
    if (nearest >= -left && farthest <= right) return Coverage::full;
    return Coverage::partial;
  }
};

/// How a score is formed: s = scale * q.k, and -inf where the mask hides the key.
struct Scoring {
  double scale = 1;
  Mask mask = {};
};

}  // namespace ring_attention
