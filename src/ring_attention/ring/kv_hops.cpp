#include "ring_attention/ring/kv_hops.hpp"

#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention {
std::vector<int> kv_hops(const Mask& mask, const Placement& queries, const Placement& keys) {
  require(queries.ranks() == keys.ranks(), "kv_hops: the placements are over different numbers of ranks");
  const int ranks = keys.ranks();
  std::vector<TokenRanges> rows;
  rows.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) rows.push_back(queries.ranges(rank));
  std::vector<int> hops;
  for (int owner = 0; owner < ranks; ++owner) {
    const TokenRanges columns = keys.ranges(owner);
    Ring last{owner, ranks};
    do last.rank = last.prev();
    while (last.rank != owner && !mask.any_visible(rows[static_cast<std::size_t>(last.rank)], columns));
    hops.push_back(last.step_of(owner));
  }
  return hops;
}

}  // namespace ring_attention
