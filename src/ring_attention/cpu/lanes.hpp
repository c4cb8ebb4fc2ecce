/// \file
/// What the two engines of the CPU share: tiles of queries, and a range of keys as the lanes of a kernel see it.
#pragma once

#include <array>
#include <vector>

#include "ring_attention/attention/bias.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/cpu/kernels.hpp"

namespace ring_attention::cpu {

/// At most `lanes` queries of one range, and the index of the first of them in memory.
struct QueryTile {
  TokenRange queries;
  Index first;
};

[[nodiscard]] std::vector<QueryTile> query_tiles(const TokenRanges& queries, int lanes);

/// The intervals of keys that the queries of a shard see. A mask with sets is asked once for each query and interval, and not
/// once more for each tile of keys; other masks answer as fast as memory.
class QueryIntervals {
 public:
  QueryIntervals() = default;
  QueryIntervals(const Mask& mask, const TokenRanges& queries);

  [[nodiscard]] int parts() const { return mask_.parts(); }
  /// Mask::visible of query `i` of a tile.
  [[nodiscard]] Interval visible(const QueryTile& tile, Index i, int part) const {
    if (mask_.sets == nullptr) return mask_.visible(tile.queries.position(i));
    return table_[static_cast<std::size_t>(part * queries_ + tile.first + i)];
  }

 private:
  Mask mask_;
  Index queries_ = 0;
  std::vector<Interval> table_;  // [parts][queries], with sets
};

/// Memory for the tile of every thread: row `worker` of the result is one.
template <class T>
[[nodiscard]] Tensor<T> workspaces(int threads, Size elements);

/// A KeySpan and the arrays that it points to. Not copied, because of that.
template <class T>
class Lanes {
 public:
  Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// What the queries of a tile of a head see of a range of keys.
  /// \param intervals  of the mask of the scoring
  /// \param part  of the intervals
  /// \param k, v  the first key of the range, [keys][dim], and its value, [keys][value_dim]
  /// \param bias, grad_bias  of all queries (bias.hpp), or empty
  /// \returns false when they see no key of it
  [[nodiscard]] bool look(const Scoring& scoring, const QueryIntervals& intervals, Index batch, Index head,
                          const QueryTile& tile, int part, const TokenRange& keys, const T* k, const T* v,
                          const View<const T>& bias, const View<T>& grad_bias = {});

  [[nodiscard]] const KeySpan<T>& span() const { return span_; }

 private:
  KeySpan<T> span_{};
  std::array<int, max_lanes> begin_{}, end_{};
  std::array<T, max_lanes> distance_{};
  std::array<unsigned, max_lanes> low_{}, high_{};  // of the dropout
};

}  // namespace ring_attention::cpu
