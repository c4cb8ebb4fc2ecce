/// \file
/// `Scoring`: how the score of a query and a key is formed, and what the softmax of the scores adds and drops.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "ring_attention/attention/dropout.hpp"
#include "ring_attention/attention/mask.hpp"
#include "ring_attention/attention/terms.hpp"

namespace ring_attention {

/// How a score is formed: s = scale * q.k + bias, and -inf where the mask hides the key; and what the softmax of
/// the scores adds (sinks) and drops (dropout). A dense bias is not here, because it is an array of each rank (bias.hpp).
struct Scoring {
  double scale = 1;
  Mask mask = {};
  /// ALiBi (Press et al., arXiv 2108.12409): one slope per query head, or none. The bias of a pair is
  /// -slope * |key position - query position|.
  std::vector<double> alibi_slopes = {};
  /// One logit per query head, without a value (sink.hpp), or none.
  std::vector<double> sinks = {};
  Dropout dropout = {};

  /// The scoring of these query heads only: their slopes and sinks, and the dropout of these heads of the layer.
  [[nodiscard]] Scoring of_heads(const Interval& heads) const;

  /// 0 for each number that has a gradient.
  [[nodiscard]] TermNumbers zero_gradients() const { return {std::vector<double>(sinks.size())}; }

  /// The sink of a head, -inf without sinks: the lse of a row that sees no key.
  [[nodiscard]] double sink(Index head) const {
    return sinks.empty() ? -std::numeric_limits<double>::infinity() : sinks[static_cast<std::size_t>(head)];
  }
  [[nodiscard]] bool has_alibi() const { return !alibi_slopes.empty(); }
  [[nodiscard]] double alibi(Index head, Index query, Index key) const {
    return -alibi_slopes[static_cast<std::size_t>(head)] *
           static_cast<double>(std::abs(key - (query + mask.offset)));
  }
};

/// The slopes of the ALiBi paper for `heads` query heads: 2^(-8/n), 2^(-16/n), ... for a power of two n; otherwise
/// the slopes of the power of two below, then every second one of the power of two above.
[[nodiscard]] std::vector<double> alibi_slopes(Index heads);

}  // namespace ring_attention
