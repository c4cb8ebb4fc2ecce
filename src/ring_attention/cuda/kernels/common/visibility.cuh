/// \file
/// Which keys of a shard a tile of queries sees: which tiles of keys it can skip, which need no test, and which keys of
/// the other tiles are visible.
///
///      keys of a range, in memory order ->
///      query 0   ######..............
///      query 1   #######.............      any: at least one query sees the key, all: every query sees it
///      query 2   ########............
///                |<all>| |
///                |<-any->|
///
/// Within a range the keys that a query sees are contiguous, so `any` and `all` are intervals, too. The ends of a tile
/// of keys decide whether it is skipped, used without a test, or tested key by key.
#pragma once

#include "ring_attention/cuda/keys.cuh"

namespace ring_attention::cuda {

/// Which keys of one range some queries see. any.begin >= any.end if they see no key.
struct Visibility {
  KeyInterval any, all;

  [[nodiscard]] __device__ bool includes_some(int first_key, int keys) const {
    return first_key < any.end && first_key + keys > any.begin;
  }
  [[nodiscard]] __device__ bool includes_all(int first_key, int keys) const {
    return first_key >= all.begin && first_key + keys <= all.end;
  }
};

constexpr int no_key = 0x7fffffff;

__device__ inline Visibility united(const Visibility& a, const Visibility& b) {
  return {{min(a.any.begin, b.any.begin), max(a.any.end, b.any.end)},
          {max(a.all.begin, b.all.begin), min(a.all.end, b.all.end)}};
}

/// The keys that each of `rows` queries sees, in every range, and the visibility for groups of `group` rows (16 or 32).
template <int rows, int group>
struct TileVisibility {
  static constexpr int groups = rows / group;

  KeyInterval visible[max_ranges][rows];
  Visibility of_group[max_ranges][groups];

  /// Thread i < rows computes for query first_query + i; queries beyond the last one are treated like the last one. All
  /// threads of a warp call it, and a barrier follows.
  __device__ void compute(const AttentionTask& task, int first_query, int thread) {
    if (thread >= rows) return;
    const int query = min(first_query + thread, task.queries - 1);
    for (int r = 0; r < task.ranges; ++r) {
      const KeyInterval keys = visible_keys(task.range[r], task.visible[query]);
      visible[r][thread] = keys;
      Visibility both{keys.begin < keys.end ? keys : KeyInterval{no_key, 0}, keys};
#pragma unroll
      for (int distance = group / 2; distance > 0; distance /= 2)
        both = united(both, {{__shfl_xor_sync(0xffffffffU, both.any.begin, distance),
                              __shfl_xor_sync(0xffffffffU, both.any.end, distance)},
                             {__shfl_xor_sync(0xffffffffU, both.all.begin, distance),
                              __shfl_xor_sync(0xffffffffU, both.all.end, distance)}});
      if (thread % group == 0) of_group[r][thread / group] = both;
    }
  }

  /// The visibility for all rows.
  [[nodiscard]] __device__ Visibility of_range(int range) const {
    Visibility both = of_group[range][0];
    for (int g = 1; g < groups; ++g) both = united(both, of_group[range][g]);
    return both;
  }
};

/// The tiles of keys that some query sees, over all ranges: `for (KeyTiles tile(...); tile.more(); tile.next())`.
template <class QueryVisibility>
class KeyTiles {
 public:
  __device__ KeyTiles(const QueryVisibility& visibility, int ranges, int width)
      : visibility_(visibility), ranges_(ranges), width_(width) {
    find_range();
  }
  [[nodiscard]] __device__ bool more() const { return range_ < ranges_; }
  [[nodiscard]] __device__ int range() const { return range_; }
  [[nodiscard]] __device__ int first() const { return first_; }
  /// The keys of the tile, without keys that no query sees at its end.
  [[nodiscard]] __device__ int keys() const { return min(width_, end_ - first_); }
  __device__ void next() {
    first_ += width_;
    if (first_ < end_) return;
    ++range_;
    find_range();
  }

 private:
  __device__ void find_range() {
    for (; range_ < ranges_; ++range_) {
      const KeyInterval any = visibility_.of_range(range_).any;
      first_ = any.begin;
      end_ = any.end;
      if (first_ < end_) return;
    }
  }

  const QueryVisibility& visibility_;
  int ranges_, width_;
  int range_ = 0, first_ = 0, end_ = 0;
};

}  // namespace ring_attention::cuda
