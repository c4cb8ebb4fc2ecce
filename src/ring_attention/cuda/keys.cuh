/// \file
/// Which keys a query sees, inside kernels: the interval of a mask, cut to one run of keys in memory.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// The keys first <= j < last of a shard, counted as they lie in memory, all of one run. first <= last.
struct Keys {
  int first, last;
};

/// How many keys of the run stand before global position `position`: 0 .. count. A search, because a division of 64 bits
/// takes as long and more registers than a warp that only copies has.
__device__ inline int keys_before(const Run& run, Index position) {
  const Index away = position - run.begin;
  if (away <= 0) return 0;
  if (run.stride == 1) return static_cast<int>(away < run.count ? away : run.count);
  int before = 0, rest = static_cast<int>(run.count);  // the answer is in before .. before + rest
  while (rest > 0) {
    const int half = rest / 2;
    if ((before + half) * run.stride < away) {
      before += half + 1;
      rest -= half + 1;
    } else {
      rest = half;
    }
  }
  return before;
}

/// The keys of the run whose positions lie in `visible`.
__device__ inline Keys seen(const KeyRun& run, Interval visible) {
  const int base = static_cast<int>(run.first);
  const int first = keys_before(run.tokens, visible.first), last = keys_before(run.tokens, visible.last);
  return {base + first, base + (last < first ? first : last)};
}

/// The bias of one pair, 0 without ALiBi. `slope` in the units that the score has.
__device__ inline float alibi(float slope, const KeyRun& run, int key, Index query_position) {
  const Index distance = run.tokens.begin + (key - run.first) * run.tokens.stride - query_position;
  return -slope * static_cast<float>(distance < 0 ? -distance : distance);
}

}  // namespace ring_attention::cuda
