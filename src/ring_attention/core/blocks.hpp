/// \file
/// `for_each_block`: tokens in blocks, as engines compute them.
#pragma once

#include <algorithm>

#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// Cuts each range into blocks of at most `block` tokens: visit(block, index of its first token in memory).
void for_each_block(const TokenRanges& ranges, Index block, auto visit) {
  Index first = 0;
  for (const TokenRange& range : ranges) {
    for (Index i = 0; i < range.count; i += block)
      visit(range.slice(i, std::min(block, range.count - i)), first + i);
    first += range.count;
  }
}

}  // namespace ring_attention
