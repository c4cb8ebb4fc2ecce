/// \file
/// `Mask`: which query may see which key, as a predicate on global token positions.
///
/// Because positions are global, every placement of tokens on ranks, every uneven length and every step
/// of the ring is right by construction.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "ring_attention/attention/dropout.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// What a mask does to all pairs of two ranges.
enum class Coverage {
  none,    ///< every pair is masked: skip
  full,    ///< no pair is masked: no test needed
  partial  ///< test each pair
};

/// Packed sequences: several documents one after the other. A query sees only keys of its own document. A position
/// outside all documents (padding; a query before the first key) sees nothing, and no query sees it.
class Documents {
 public:
  /// \param boundaries  cu_seqlens: 0, then the end of each document, not decreasing (a document may be empty)
  /// \throws Error otherwise
  explicit Documents(std::vector<Index> boundaries);

  /// The document of a position, or -1 outside all of them.
  [[nodiscard]] Index of(Index position) const;

  /// Where a document begins, and where it ends: the position after its last one.
  [[nodiscard]] Index begin(Index document) const { return boundaries_[static_cast<std::size_t>(document)]; }
  [[nodiscard]] Index end(Index document) const {
    return boundaries_[static_cast<std::size_t>(document) + 1];
  }
  /// Where the last document ends.
  [[nodiscard]] Index end() const { return boundaries_.back(); }

 private:
  std::vector<Index> boundaries_;
};

/// A band of visible keys around each query, within its document. The default hides nothing.
///
/// Query i is at key position i + offset. With Sq queries and Sk keys, offset = Sk - Sq aligns the
/// last query with the last key (bottom-right, as FlashAttention does from 2.1 on).
struct Mask {
  static constexpr Index unlimited = std::numeric_limits<Index>::max() / 4;

  Index left = unlimited;   ///< how many keys before its own position a query sees
  Index right = unlimited;  ///< how many keys after it; 0 is causal
  Index offset = 0;         ///< Sk - Sq, unless the user says otherwise
  std::shared_ptr<const Documents> documents = nullptr;  ///< null: one document

  [[nodiscard]] static Mask causal(Index offset = 0) { return {unlimited, 0, offset}; }

  /// May the query at global position `query` see the key at global position `key`?
  [[nodiscard]] bool allowed(Index query, Index key) const {
    const Index distance = key - (query + offset);
    if (distance < -left || distance > right) return false;
    if (documents == nullptr) return true;
    const Index document = documents->of(query + offset);
    return document >= 0 && document == documents->of(key);
  }

  /// All keys that `allowed` allows for a query: they are consecutive. The interval may extend beyond the keys that exist.
  [[nodiscard]] Interval visible(Index query) const;

  /// Decides for all pairs at once, from the ends of both ranges, which must not be empty. `partial` if the ends
  /// are not enough to decide.
  [[nodiscard]] Coverage coverage(const TokenRange& queries, const TokenRange& keys) const;
  /// May any of these queries see any of these keys? Also true if the ends of the ranges are not enough to decide.
  [[nodiscard]] bool any_visible(const TokenRanges& queries, const TokenRanges& keys) const;
};

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
