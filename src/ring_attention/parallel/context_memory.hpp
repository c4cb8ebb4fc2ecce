/// \file
/// What a rank has in memory at a time while it computes its part of an attention: a function for each partition.
#pragma once

#include "ring_attention/parallel/partition.hpp"

namespace ring_attention {

/// Bytes of an element of q, k, v and dO; of K,V in messages; of sums and results.
struct ElementBytes {
  Index input, wire, value;
};

/// What every rank has: its queries and results, and K,V where messages can take them. `q` and `kv` are the shapes of the
/// largest shard, with the heads that one rank computes.
/// \param more_shards  of K,V than in a ring, at a time (Division::more_shards)
[[nodiscard]] Index ring_bytes(const Shape& q, const KvShape& kv, bool gradients, const ElementBytes& bytes,
                               int more_shards = 0);
/// What ranks that share heads have besides.
[[nodiscard]] Index ulysses_bytes(const Shape& q, const KvShape& kv, bool gradients,
                                  const ElementBytes& bytes);

/// What exact sums need besides (CpuOptions::same_bits): the state or dQ, and dK,dV.
[[nodiscard]] Index exact_bytes(const SharedAttention& shared, bool gradients);

/// The shapes of the largest shard, with the heads that one rank computes: of q, and of k and v.
[[nodiscard]] Shape computed_queries(const SharedAttention& shared);
[[nodiscard]] KvShape computed_keys(const SharedAttention& shared);

/// All of it for one partition. A bias and what a kernel needs for itself are not in it.
[[nodiscard]] Index context_bytes(const SharedAttention& shared, bool gradients, const ElementBytes& bytes);

}  // namespace ring_attention
