/// \file
/// Tiles of a shard, for the two engines of this folder.
#pragma once

#include "ring_attention/attention/exact/state.hpp"
#include "ring_attention/attention/exact/tiling.hpp"

namespace ring_attention {

/// Merges rows of sums that a kernel has stored, not wide, `stride` words from one to the next.
inline void merge_rows(ExactRows& into, Index batch, Index head, const TokenTile& tile, float* stored,
                       Index stride) {
  const ExactFormat narrow{into.format().dim, false};
  for (Index i = 0; i < tile.tokens.count; ++i)
    into.at(batch, head, tile.first + i).merge(ExactSum(narrow, stored + i * stride));
}

}  // namespace ring_attention
