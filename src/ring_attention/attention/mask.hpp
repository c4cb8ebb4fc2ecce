/// \file
/// `Mask`: which query may see which key, as a predicate on global token positions.
///
/// Because positions are global, every placement of tokens on ranks, every uneven length and every step
/// of the ring is right by construction.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "ring_attention/attention/documents.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// What a mask does to all pairs of two ranges.
enum class Coverage {
  none,    ///< every pair is masked: skip
  full,    ///< no pair is masked: no test needed
  partial  ///< test each pair
};

/// The keys that one query sees: at most four intervals, ascending, of which no two touch and none is empty.
class Intervals {
 public:
  static constexpr int most = 4;

  Intervals() = default;
  /// Adds these keys. Merges with intervals that they touch. An empty interval adds nothing.
  /// \throws Error when there would be a fifth interval
  void add(Interval keys);

  [[nodiscard]] int size() const { return size_; }
  /// \param part  below `most`. From size() on: empty
  [[nodiscard]] Interval operator[](int part) const { return parts_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] bool contains(Index key) const;

 private:
  std::array<Interval, most> parts_{};
  int size_ = 0;
};

/// What a mask adds to its band, or cuts out of it: mask_sets.hpp has MaskSets and MaskRows. All positions are of keys; a
/// query has the key position of `Mask::offset`.
class KeySets {
 public:
  virtual ~KeySets() = default;

  /// The most intervals that a query sees.
  [[nodiscard]] virtual int parts() const = 0;
  /// What a query sees.
  /// \param query     its number
  /// \param at        its key position
  /// \param band      what it sees without sets, within its document
  /// \param document  its document, [0, unlimited) without documents
  /// \param causal    the mask has right = 0
  [[nodiscard]] virtual Intervals seen(Index query, Index at, Interval band, Interval document,
                                       bool causal) const = 0;
  /// May they show a query some keys that it does not see without them? False where none does, from the ends alone.
  /// \param at         key positions of queries
  /// \param documents  are there any?
  [[nodiscard]] virtual bool may_show(const Interval& at, const Interval& keys, bool documents) const = 0;
  /// What is wrong with them for these numbers of queries and keys, in a sentence that says what is possible.
  [[nodiscard]] virtual std::optional<std::string> fault(Index queries, Index keys) const = 0;
  /// One line, for reports and comparisons.
  [[nodiscard]] virtual std::string text() const = 0;
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
  std::shared_ptr<const KeySets> sets = nullptr;         ///< null: the band alone

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
