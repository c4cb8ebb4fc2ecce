/// \file
/// `shared_heads`: which rank of a group of Ulysses computes which heads.
#pragma once

#include <vector>

#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// The heads [begin, end) of an array that each rank of a group of U ranks has, as numbers among all heads of the layer.
///
/// U divides the query heads: rank u computes block u of them. If U also divides the K,V heads, it has block u of those.
/// If the K,V heads divide U, U / kv_heads ranks share one: each of them gets a replica of it. All query heads of a rank
/// then belong to that one. The blocks keep the groups of grouped-query attention together, so an engine needs no
/// other mapping of heads. A bias that broadcasts over heads has one, and each rank a replica.
/// Source: Jacobs et al., DeepSpeed Ulysses, arXiv 2309.14509.
/// \param heads  a multiple or a divisor of `ranks` (can_share_heads)
[[nodiscard]] std::vector<Interval> shared_heads(Index heads, int ranks);

/// May `ranks` ranks share these heads?
[[nodiscard]] bool can_share_heads(Index query_heads, Index kv_heads, Index ranks);
/// \throws InputError, which names the numbers of ranks that would do, unless they may
void require_shareable(Index query_heads, Index kv_heads, int ranks);

}  // namespace ring_attention
