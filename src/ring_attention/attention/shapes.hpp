/// \file
/// Which arrays of an attention belong together: the one place where engines check it. Their kernels rely on it.
#pragma once

#include "ring_attention/attention/engine.hpp"

namespace ring_attention {

/// \throws Error unless k is [batch, kv_heads, keys, dim] with q's batch and dim, v is like it but for its dim, and kv_heads
/// divides q's heads. Returns g = heads / kv_heads.
Index require_attention_shapes(const Shape& q, const Shape& k, const Shape& v);

/// What an engine has begun on.
struct EngineShapes {
  Shape q, out;
  Shape bias = {};  ///< of the queries (bias.hpp); empty: none
};

/// \throws Error unless there are as many queries as positions, and `bias` is empty or a bias of these queries
void require_queries(const Shape& q, const TokenRanges& at, const Shape& bias = {});
/// Keys and values for those queries. \throws Error unless all shapes fit and the bias has a column for each key. Returns g.
Index require_keys(const EngineShapes& begun, const Shape& k, const Shape& v, const TokenRanges& at);
template <class T>
Index require_keys(const EngineShapes& begun, const KeyValue<T>& kv) {
  return require_keys(begun, kv.k.shape(), kv.v.shape(), kv.ranges);
}

}  // namespace ring_attention
