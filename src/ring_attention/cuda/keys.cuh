/// \file
/// The keys that a query sees, inside kernels: the interval of its mask as indices into one range of a shard.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// The keys begin <= j < end, all of one range, as indices into the shard's memory. begin <= end.
struct KeyInterval {
  int begin, end;
};

/// The number of keys of the range before global position `position`: 0 .. count. It is a binary search because a
/// 64-bit division takes as long and needs more registers than a producer warp has.
__device__ inline int keys_before(const TokenRange& range, Index position) {
  const Index away = position - range.begin;
  if (away <= 0) return 0;
  if (range.stride == 1) return static_cast<int>(away < range.count ? away : range.count);
  int before = 0, rest = static_cast<int>(range.count);  // the result is in before .. before + rest
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

/// The keys of the range whose positions are in `visible`.
__device__ inline KeyInterval visible_keys(const KeyRange& range, Interval visible) {
  const int base = static_cast<int>(range.first);
  const int begin = keys_before(range.tokens, visible.begin), end = keys_before(range.tokens, visible.end);
  return {base + begin, base + (end < begin ? begin : end)};
}

/// The ALiBi bias of one pair; 0 if slope is 0. `slope` has the units of the score.
__device__ inline float alibi(float slope, const KeyRange& range, int key, Index query_position) {
  const Index distance = range.tokens.begin + (key - range.first) * range.tokens.stride - query_position;
  return -slope * static_cast<float>(distance < 0 ? -distance : distance);
}

}  // namespace ring_attention::cuda
