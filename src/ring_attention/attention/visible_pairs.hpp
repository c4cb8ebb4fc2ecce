/// \file
/// `visible_pairs`: how many pairs of queries and keys a mask leaves.
#pragma once

#include <algorithm>

#include "ring_attention/attention/mask.hpp"

namespace ring_attention {

/// Pairs of these queries and keys that the mask does not hide.
[[nodiscard]] inline Index visible_pairs(const Mask& mask, const TokenRanges& queries,
                                         const TokenRanges& keys) {
  Index pairs = 0;
  for (const TokenRange& range : queries)
    for (Index i = 0; i < range.count; ++i)
      for (int part = 0; part < mask.parts(); ++part) {
        const Interval seen = mask.visible(range.position(i), part);
        for (const TokenRange& block : keys)
          pairs += std::max<Index>(0, block.before(seen.end) - block.before(seen.begin));
      }
  return pairs;
}

}  // namespace ring_attention
