/// \file
/// What a tile of queries sees of a shard: which tiles of keys it can skip, which need no test, and the intervals for
/// those that do.
///
///      keys of a run, as they lie in memory ->
///      query 0   ######..............
///      query 1   #######.............      any: some query sees it, all: every query does
///      query 2   ########............
///                |<all>| |
///                |<-any->|
///
/// Within a run the keys that a query sees stand side by side, so both are intervals too, and a tile of keys is
/// skipped, taken whole or tested key by key after a look at its ends.
#pragma once

#include "ring_attention/cuda/keys.cuh"

namespace ring_attention::cuda {

/// Of some queries in one run. Nobody sees a key: any.first >= any.last.
struct Extent {
  Keys any, all;

  [[nodiscard]] __device__ bool sees_some(int first_key, int keys) const {
    return first_key < any.last && first_key + keys > any.first;
  }
  [[nodiscard]] __device__ bool sees_all(int first_key, int keys) const {
    return first_key >= all.first && first_key + keys <= all.last;
  }
};

constexpr int no_key = 0x7fffffff;

__device__ inline Extent united(const Extent& a, const Extent& b) {
  return {{min(a.any.first, b.any.first), max(a.any.last, b.any.last)},
          {max(a.all.first, b.all.first), min(a.all.last, b.all.last)}};
}

/// Of `rows` queries, in every run, and their extents in groups of `group` rows (16 or 32).
template <int rows, int group>
struct Extents {
  static constexpr int groups = rows / group;

  Keys visible[max_runs][rows];
  Extent of_group[max_runs][groups];

  /// Thread i < rows looks for query first_query + i; those beyond the last look like the last. All threads of a
  /// warp call it; a barrier follows.
  __device__ void look(const AttentionTask& task, int first_query, int thread) {
    if (thread >= rows) return;
    const int query = min(first_query + thread, task.queries - 1);
    for (int r = 0; r < task.runs; ++r) {
      const Keys mine = seen(task.run[r], task.visible[query]);
      visible[r][thread] = mine;
      Extent extent{mine.first < mine.last ? mine : Keys{no_key, 0}, mine};
#pragma unroll
      for (int distance = group / 2; distance > 0; distance /= 2)
        extent = united(extent, {{__shfl_xor_sync(0xffffffffU, extent.any.first, distance),
                                  __shfl_xor_sync(0xffffffffU, extent.any.last, distance)},
                                 {__shfl_xor_sync(0xffffffffU, extent.all.first, distance),
                                  __shfl_xor_sync(0xffffffffU, extent.all.last, distance)}});
      if (thread % group == 0) of_group[r][thread / group] = extent;
    }
  }

  /// Of all of them.
  [[nodiscard]] __device__ Extent of_run(int run) const {
    Extent extent = of_group[run][0];
    for (int g = 1; g < groups; ++g) extent = united(extent, of_group[run][g]);
    return extent;
  }
};

/// The tiles of keys that some query sees, over all runs: `for (KeyTiles tile(...); tile.more(); tile.next())`.
template <class Extents>
class KeyTiles {
 public:
  __device__ KeyTiles(const Extents& extents, int runs, int width)
      : extents_(extents), runs_(runs), width_(width) {
    enter();
  }
  [[nodiscard]] __device__ bool more() const { return run_ < runs_; }
  [[nodiscard]] __device__ int run() const { return run_; }
  [[nodiscard]] __device__ int first() const { return first_; }
  /// Keys behind the last that somebody sees are not to be read.
  [[nodiscard]] __device__ int keys() const { return min(width_, last() - first_); }
  __device__ void next() {
    first_ += width_;
    if (first_ < last()) return;
    ++run_;
    enter();
  }

 private:
  // Looked up when it is needed: registers are what these kernels have least of.
  [[nodiscard]] __device__ int last() const { return extents_.of_run(run_).any.last; }
  __device__ void enter() {
    for (; run_ < runs_; ++run_) {
      first_ = extents_.of_run(run_).any.first;
      if (first_ < last()) return;
    }
  }

  const Extents& extents_;
  int runs_, width_;
  int run_ = 0, first_ = 0;
};

}  // namespace ring_attention::cuda
