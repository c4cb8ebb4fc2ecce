/// \file
/// `MaskSets`: masks whose queries see several intervals of keys, and `Intervals`, what one query sees.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ring_attention/core/index.hpp"

namespace ring_attention {

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

/// What a mask adds to its band (Mask: causal, a window, documents) or cuts out of it. All positions are of keys; a query has
/// the key position of `Mask::offset`. No set crosses the end of a document.
///
/// The sets of a query, in this order:
/// 1. `chunk` cuts the band (Llama 4): the query sees keys of its own chunk, counted from the start of its document.
/// 2. A query at a global token sees its whole document, under a causal mask up to itself (Longformer, arXiv 2004.05150).
/// 3. A block that contains the query joins its band, so tokens of a block see each other in both directions: images
///    (Gemma 3), or a prefix, which is the block [0, n) (PaliGemma; arXiv 1910.10683, figure 4).
/// 4. The first `sink_tokens` keys of the document (StreamingLLM, arXiv 2309.17453) and the global tokens are seen also where
///    the band does not reach, under a causal mask up to the query itself.
/// Steps 1 to 3 leave one interval, so no query sees more than 1 + 1 + 2 of them.
/// Instead of these, `rows` gives the intervals of each query; the band cuts them.
struct MaskSets {
  std::vector<Interval> blocks = {};   ///< ascending, disjoint
  Index sink_tokens = 0;               ///< 0: none
  std::vector<Interval> globals = {};  ///< ascending, disjoint, at most two
  Index chunk = 0;                     ///< tokens in a chunk; 0: no chunks
  std::vector<Interval> rows = {};     ///< [queries][width]; empty intervals are padding
  int width = 0;                       ///< intervals in a row of `rows`; 0: no rows

  /// Do they say anything at all?
  [[nodiscard]] bool any() const {
    return !blocks.empty() || sink_tokens != 0 || !globals.empty() || chunk != 0 || width != 0;
  }
  /// The most intervals that a query sees.
  [[nodiscard]] int parts() const {
    return width > 0 ? width : 1 + (sink_tokens > 0 ? 1 : 0) + static_cast<int>(globals.size());
  }
  /// What is wrong with them for these numbers of queries and keys, in a sentence that says what is possible.
  [[nodiscard]] std::optional<std::string> fault(Index queries, Index keys) const;
  /// One line, for reports and comparisons: of `rows` it has a hash (FNV-1a).
  [[nodiscard]] std::string text() const;

  /// May they show a query some keys that it does not see without them? False where none does, from the ends alone.
  /// \param at         key positions of queries
  /// \param documents  are there any? Each then has sink tokens of its own
  [[nodiscard]] bool may_show(const Interval& at, const Interval& keys, bool documents) const;

  /// What a query sees.
  /// \param query     its number, for `rows`
  /// \param at        its key position
  /// \param band      what it sees without sets, within its document
  /// \param document  its document, [0, unlimited) without documents
  /// \param causal    it sees no global or sink token after itself: the mask has right = 0
  [[nodiscard]] Intervals seen(Index query, Index at, Interval band, Interval document, bool causal) const;
};

}  // namespace ring_attention
