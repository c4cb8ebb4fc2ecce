/// \file
/// `Mask`: which query may see which key, as a predicate on global token positions.
///
/// Because positions are global, every placement of tokens on ranks, every uneven length and every step
/// of the ring is right by construction.
#pragma once

#include <limits>
#include <memory>

#include "ring_attention/attention/documents.hpp"
#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// What a mask does to all pairs of two ranges.
enum class Coverage {
  none,    ///< every pair is masked: skip
  full,    ///< no pair is masked: no test needed
  partial  ///< test each pair
};

/// A band of visible keys around each query, within its document, and sets that add to it. The default hides nothing.
///
/// A query sees at most four intervals of keys. Whoever uses a mask asks for them (parts(), visible()) or for what they
/// imply (allowed(), coverage()), and knows no kind of mask.
/// Query i is at key position i + offset. With Sq queries and Sk keys, offset = Sk - Sq aligns the
/// last query with the last key (bottom-right, as FlashAttention does from 2.1 on).
struct Mask {
  static constexpr Index unlimited = std::numeric_limits<Index>::max() / 4;

  Index left = unlimited;   ///< how many keys before its own position a query sees
  Index right = unlimited;  ///< how many keys after it; 0 is causal
  Index offset = 0;         ///< Sk - Sq, unless the user says otherwise
  std::shared_ptr<const Documents> documents = nullptr;  ///< null: one document
  std::shared_ptr<const MaskSets> sets = nullptr;        ///< null: the band alone

  [[nodiscard]] static Mask causal(Index offset = 0) { return {unlimited, 0, offset}; }

  /// Are the numbers small enough to be added to positions? The functions below need it.
  [[nodiscard]] bool valid() const {
    const auto side = [](Index keys) { return within(keys, 0, largest_position) || keys == unlimited; };
    return side(left) && side(right) && within(offset, -largest_position, largest_position);
  }

  /// May the query at global position `query` see the key at global position `key`?
  [[nodiscard]] bool allowed(Index query, Index key) const {
    if (sets != nullptr) return seen(query).contains(key);
    const Index distance = key - (query + offset);
    if (distance < -left || distance > right) return false;
    if (documents == nullptr) return true;
    const Index document = documents->of(query + offset);
    return document >= 0 && document == documents->of(key);
  }

  /// The most intervals of keys that a query sees: 1 without sets.
  [[nodiscard]] int parts() const { return sets == nullptr ? 1 : sets->parts(); }

  /// Interval `part`, below parts(), of the keys that `allowed` allows for a query: its intervals ascend, no two touch, and
  /// the last ones may be empty. An interval may extend beyond the keys that exist.
  [[nodiscard]] Interval visible(Index query, int part = 0) const;

  /// Decides for all pairs at once, for ranges that must not be empty. Without sets from the ends of both ranges: `partial`
  /// if the ends are not enough to decide. With sets exactly: query by query where a set may show some of these keys.
  [[nodiscard]] Coverage coverage(const TokenRange& queries, const TokenRange& keys) const;
  /// May any of these queries see any of these keys? Also true if the ends of the ranges are not enough to decide.
  [[nodiscard]] bool any_visible(const TokenRanges& queries, const TokenRanges& keys) const;

 private:
  /// Coverage without sets.
  [[nodiscard]] Coverage coverage_of_band(const TokenRange& queries, const TokenRange& keys) const;
  /// All intervals of a query, with sets.
  [[nodiscard]] Intervals seen(Index query) const;
};

}  // namespace ring_attention
