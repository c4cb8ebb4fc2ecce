/// \file
/// What a tile of queries sees of a shard: which tiles of keys it can skip, which need no test, and the intervals for
/// those that do.
///
///      keys of a range, as they lie in memory ->
///      query 0   ######..............
///      query 1   #######.............      any: some query sees it, all: every query does
///      query 2   ########............
///                |<all>| |
///                |<-any->|
///
/// Within a range the keys that a query sees stand side by side, so both are intervals too, and a tile of keys is
/// skipped, taken whole or tested key by key after a look at its ends.
#pragma once

#include "ring_attention/cuda/keys.cuh"

namespace ring_attention::cuda {

/// Of some queries in one range. Nobody sees a key: any.begin >= any.end.
struct Extent {
  KeyInterval any, all;

  [[nodiscard]] __device__ bool sees_some(int first_key, int keys) const {
    return first_key < any.end && first_key + keys > any.begin;
  }
  [[nodiscard]] __device__ bool sees_all(int first_key, int keys) const {
    return first_key >= all.begin && first_key + keys <= all.end;
  }
};

constexpr int no_key = 0x7fffffff;

__device__ inline Extent united(const Extent& a, const Extent& b) {
  return {{min(a.any.begin, b.any.begin), max(a.any.end, b.any.end)},
          {max(a.all.begin, b.all.begin), min(a.all.end, b.all.end)}};
}

/// Of `rows` queries, in every range, and their extents in groups of `group` rows (16 or 32).
template <int rows, int group>
struct Extents {
  static constexpr int groups = rows / group;

  KeyInterval visible[max_ranges][rows];
  Extent of_group[max_ranges][groups];

  /// Thread i < rows looks for query first_query + i; those beyond the last look like the last. All threads of a
  /// warp call it; a barrier follows.
  __device__ void visibility(const AttentionTask& task, int first_query, int thread) {
    if (thread >= rows) return;
    const int query = min(first_query + thread, task.queries - 1);
    for (int r = 0; r < task.ranges; ++r) {
      const KeyInterval mine = seen(task.range[r], task.visible[query]);
      visible[r][thread] = mine;
      Extent extent{mine.begin < mine.end ? mine : KeyInterval{no_key, 0}, mine};
#pragma unroll
      for (int distance = group / 2; distance > 0; distance /= 2)
        extent = united(extent, {{__shfl_xor_sync(0xffffffffU, extent.any.begin, distance),
                                  __shfl_xor_sync(0xffffffffU, extent.any.end, distance)},
                                 {__shfl_xor_sync(0xffffffffU, extent.all.begin, distance),
                                  __shfl_xor_sync(0xffffffffU, extent.all.end, distance)}});
      if (thread % group == 0) of_group[r][thread / group] = extent;
    }
  }

  /// Of all of them.
  [[nodiscard]] __device__ Extent of_range(int range) const {
    Extent extent = of_group[range][0];
    for (int g = 1; g < groups; ++g) extent = united(extent, of_group[range][g]);
    return extent;
  }
};

/// The tiles of keys that some query sees, over all ranges: `for (KeyTiles tile(...); tile.more(); tile.next())`.
template <class Extents>
class KeyTiles {
 public:
  __device__ KeyTiles(const Extents& extents, int ranges, int width)
      : extents_(extents), ranges_(ranges), width_(width) {
    enter();
  }
  [[nodiscard]] __device__ bool more() const { return range_ < ranges_; }
  [[nodiscard]] __device__ int range() const { return range_; }
  [[nodiscard]] __device__ int first() const { return first_; }
  /// Keys behind the last that somebody sees are not to be read.
  [[nodiscard]] __device__ int keys() const { return min(width_, last() - first_); }
  __device__ void next() {
    first_ += width_;
    if (first_ < last()) return;
    ++range_;
    enter();
  }

 private:
  // Looked up when it is needed: registers are what these kernels have least of.
  [[nodiscard]] __device__ int last() const { return extents_.of_range(range_).any.end; }
  __device__ void enter() {
    for (; range_ < ranges_; ++range_) {
      first_ = extents_.of_range(range_).any.begin;
      if (first_ < last()) return;
    }
  }

  const Extents& extents_;
  int ranges_, width_;
  int range_ = 0, first_ = 0;
};

}  // namespace ring_attention::cuda
