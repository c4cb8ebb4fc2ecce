/// \file
/// Which hops of K,V a mask makes necessary.
#pragma once

#include <vector>

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/ring/placement.hpp"

namespace ring_attention {

/// How many hops the K,V of each rank make: as far as the last rank with a query that may see one of these keys. A rank
/// without keys makes none.
///
/// The number follows from the mask and the placements alone, so both ends of a hop know it without a message. A causal
/// mask and contiguous shards: rank r makes N - 1 - r hops, half of all. A window of LEFT keys before a query and none
/// after it, on shards of c tokens: ceil(LEFT / c) hops. With keys after a query (RIGHT > 0) a parcel is needed on the
/// rank before its owner, which it reaches last: it makes nearly all hops.
///
/// \param queries, keys  placements over the same number of ranks
[[nodiscard]] std::vector<int> kv_hops(const Mask& mask, const Placement& queries, const Placement& keys);

}  // namespace ring_attention
