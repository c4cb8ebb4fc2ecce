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

/// How a score is formed: s = capped(scale * q.k) + bias, and -inf where the mask hides the key; and what the softmax of
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
  /// A product x = scale * q.k becomes softcap * tanh(x / softcap), before a bias is added (Gemma 2, arXiv 2408.00118,
  /// section 2: "logit soft-capping"). 0: it stays x.
  double softcap = 0;

  /// The scoring of these query heads only: their slopes and sinks, and the dropout of these heads of the layer.
  [[nodiscard]] Scoring of_heads(const Interval& heads) const;

  /// 0 for each number that has a gradient.
  [[nodiscard]] TermNumbers zero_gradients() const { return {std::vector<double>(sinks.size())}; }

  /// The sink of a head, -inf without sinks: the lse of a row that sees no key.
  [[nodiscard]] double sink(Index head) const {
    return sinks.empty() ? -std::numeric_limits<double>::infinity() : sinks[static_cast<std::size_t>(head)];
  }
  [[nodiscard]] bool caps() const { return softcap != 0; }
  /// The score of a product before anything is added to it.
  template <class T>
  [[nodiscard]] T capped(T product) const {
    const auto cap = static_cast<T>(softcap);
    return caps() ? cap * std::tanh(product / cap) : product;
  }
  /// The derivative of capped(), from its result: 1 - tanh^2.
  template <class T>
  [[nodiscard]] T slope_of_cap(T capped) const {
    const T ratio = caps() ? capped / static_cast<T>(softcap) : T{0};
    return (1 - ratio) * (1 + ratio);
  }
  [[nodiscard]] bool has_alibi() const { return !alibi_slopes.empty(); }
  /// Is something added to the scores, other than a dense bias?
  [[nodiscard]] bool adds() const { return has_alibi(); }
  /// What is added to the score of a pair: ALiBi. It needs adds().
  [[nodiscard]] double added(Index head, Index query, Index key) const {
    return -alibi_slopes[static_cast<std::size_t>(head)] *
           static_cast<double>(std::abs(key - (query + mask.offset)));
  }
};

/// The slopes of the ALiBi paper for `heads` query heads: 2^(-8/n), 2^(-16/n), ... for a power of two n; otherwise
/// the slopes of the power of two below, then every second one of the power of two above.
[[nodiscard]] std::vector<double> alibi_slopes(Index heads);

}  // namespace ring_attention
