/// \file
/// Which keys a query sees, inside kernels: the interval of a mask, cut to one range of keys in memory.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// The keys begin <= j < end of a shard, counted as they lie in memory, all of one range. begin <= end.
struct KeyInterval {
  int begin, end;
};

/// How many keys of the range stand before global position `position`: 0 .. count. A search, because a division of 64 bits
/// takes as long and more registers than a warp that only copies has.
__device__ inline int keys_before(const TokenRange& range, Index position) {
  const Index away = position - range.begin;
  if (away <= 0) return 0;
  if (range.stride == 1) return static_cast<int>(away < range.count ? away : range.count);
  int before = 0, rest = static_cast<int>(range.count);  // the answer is in before .. before + rest
  while (rest > 0) {
    const int half = rest / 2;
    if ((before + half) * range.stride < away) {
      before += half + 1;
      rest -= half + 1;
    } else {
      rest = half;
    }
  }
  return before;
}

/// The keys of the range whose positions lie in `visible`.
__device__ inline KeyInterval seen(const KeyRange& range, Interval visible) {
  const int base = static_cast<int>(range.first);
  const int first = keys_before(range.tokens, visible.begin), last = keys_before(range.tokens, visible.end);
  return {base + first, base + (last < first ? first : last)};
}

/// The bias of one pair, 0 without ALiBi. `slope` in the units that the score has.
__device__ inline float alibi(float slope, const KeyRange& range, int key, Index query_position) {
  const Index distance = range.tokens.begin + (key - range.first) * range.tokens.stride - query_position;
  return -slope * static_cast<float>(distance < 0 ? -distance : distance);
}

}  // namespace ring_attention::cuda
