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
  /// \param part  of the intervals of keys that a query sees (Mask::visible)
  /// \param k, v  the first key of the range, [keys][dim], and its value, [keys][value_dim]
  /// \param bias, grad_bias  of all queries (bias.hpp), or empty
  /// \returns false when they see no key of it
  [[nodiscard]] bool look(const Scoring& scoring, Index batch, Index head, const QueryTile& tile, int part,
                          const TokenRange& keys, const T* k, const T* v, const View<const T>& bias,
                          const View<T>& grad_bias = {});

  [[nodiscard]] const KeySpan<T>& span() const { return span_; }

 private:
  KeySpan<T> span_{};
  std::array<int, max_lanes> begin_{}, end_{};
  std::array<T, max_lanes> distance_{};
  std::array<unsigned, max_lanes> low_{}, high_{};  // of the dropout
};

}  // namespace ring_attention::cpu
