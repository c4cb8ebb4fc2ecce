/// \file
/// The arrays that a rank has at a time while it computes its part of an attention: a list for each partition.
#pragma once

#include <vector>

#include "ring_attention/parallel/context_parallel.hpp"

namespace ring_attention {

/// An array, or several of one size.
struct RankArray {
  const char* name;
  Index bytes;
};

/// Bytes of an element of q, k, v and dO; of K,V in messages; of sums and results.
struct ElementBytes {
  Index input, wire, value;
};

/// What every rank has: its queries and results, and K,V where messages can take them. `q` and `kv` are the shapes of the
/// largest shard, with the heads that one rank computes.
[[nodiscard]] std::vector<RankArray> ring_arrays(const Shape& q, const Shape& kv, bool gradients,
                                                 const ElementBytes& bytes);
/// What an all-gather over `ranks` has besides.
[[nodiscard]] std::vector<RankArray> all_gather_arrays(const Shape& kv, int ranks, bool gradients,
                                                       const ElementBytes& bytes);
/// What ranks that share heads have besides.
[[nodiscard]] std::vector<RankArray> ulysses_arrays(const Shape& q, const Shape& kv, bool gradients,
                                                    const ElementBytes& bytes);

/// The shapes of the largest shard, with the heads that one rank computes: of q, and of k and v.
[[nodiscard]] Shape computed_queries(const SharedAttention& shared);
[[nodiscard]] Shape computed_keys(const SharedAttention& shared);

/// All of these of one partition. A bias and what a kernel needs for itself are not among them.
[[nodiscard]] Index context_bytes(const SharedAttention& shared, bool gradients, const ElementBytes& bytes);

}  // namespace ring_attention
