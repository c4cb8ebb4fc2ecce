/// \file
/// What the two engines of the CPU share: tiles of queries, and a range of keys as the lanes of a kernel see it.
#pragma once

#include <array>
#include <vector>

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/attention/tile.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/cpu/kernels.hpp"

namespace ring_attention::cpu {

/// At most `lanes` queries of one range, and the index of the first of them in memory.
struct QueryTile {
  TokenRange queries;
  Index first;
};

[[nodiscard]] std::vector<QueryTile> query_tiles(const TokenRanges& queries, int lanes);

/// Memory for the tile of every thread: row `worker` of the result is one.
[[nodiscard]] Tensor<float> workspaces(int threads, Size floats);

/// A KeySpan and the arrays that it points to. Not copied, because of that.
class Lanes {
 public:
  Lanes() = default;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// What the queries of a tile see of a range of keys.
  /// \param k, v  the first key of the range, [keys][dim]
  /// \returns false when they see no key of it
  [[nodiscard]] bool look(const Scoring& scoring, Index head, const TokenRange& queries,
                          const TokenRange& keys, const float* k, const float* v);

  [[nodiscard]] const KeySpan& span() const { return span_; }

 private:
  KeySpan span_{};
  std::array<int, max_lanes> begin_{}, end_{};
  std::array<float, max_lanes> distance_{};
};

}  // namespace ring_attention::cpu
