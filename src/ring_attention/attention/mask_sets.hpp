/// \file
/// Masks whose queries see several intervals of keys: `MaskSets` around a band, or `MaskRows`, an array.
///
///     mask.sets = std::make_shared<const MaskSets>(MaskSets::Sets{.sink_tokens = 4});
#pragma once

#include <vector>

#include "ring_attention/attention/mask.hpp"

namespace ring_attention {

/// Sets around a band (Mask: causal, a window, documents). No set crosses the end of a document.
///
/// The sets of a query, in this order:
/// 1. `chunk` cuts the band (Llama 4): the query sees keys of its own chunk, counted from the start of its document.
/// 2. A query at a global token sees its whole document, under a causal mask up to itself (Longformer, arXiv 2004.05150).
/// 3. A block that contains the query joins its band, so tokens of a block see each other in both directions: images
///    (Gemma 3), or a prefix, which is the block [0, n) (PaliGemma; arXiv 1910.10683, figure 4).
/// 4. The first `sink_tokens` keys of the document (StreamingLLM, arXiv 2309.17453) and the global tokens are seen also where
///    the band does not reach, under a causal mask up to the query itself.
/// Steps 1 to 3 leave one interval, so no query sees more than 1 + 1 + 2 of them.
class MaskSets final : public KeySets {
 public:
  struct Sets {
    std::vector<Interval> blocks = {};   ///< ascending, disjoint
    Index sink_tokens = 0;               ///< 0: none
    std::vector<Interval> globals = {};  ///< ascending, disjoint, at most two
    Index chunk = 0;                     ///< tokens in a chunk; 0: no chunks

    /// Do they say anything at all?
    [[nodiscard]] bool any() const {
      return !blocks.empty() || sink_tokens != 0 || !globals.empty() || chunk != 0;
    }
  };
  explicit MaskSets(Sets of) : sets(std::move(of)) {}

  [[nodiscard]] int parts() const override {
    return 1 + (sets.sink_tokens > 0 ? 1 : 0) + static_cast<int>(sets.globals.size());
  }
  [[nodiscard]] Intervals seen(Index query, Index at, Interval band, Interval document,
                               bool causal) const override;
  [[nodiscard]] bool may_show(const Interval& at, const Interval& keys, bool documents) const override;
  [[nodiscard]] std::optional<std::string> fault(Index queries, Index keys) const override;
  [[nodiscard]] std::string text() const override;

  Sets sets;
};

/// The intervals of each query, cut by the band.
class MaskRows final : public KeySets {
 public:
  /// \param of_queries  [queries][width]; empty intervals are padding  \param intervals  in a row, the width
  MaskRows(std::vector<Interval> of_queries, int intervals) : rows(std::move(of_queries)), width(intervals) {}

  [[nodiscard]] int parts() const override { return width; }
  [[nodiscard]] Intervals seen(Index query, Index at, Interval band, Interval document,
                               bool causal) const override;
  [[nodiscard]] bool may_show(const Interval&, const Interval&, bool) const override { return false; }
  [[nodiscard]] std::optional<std::string> fault(Index queries, Index keys) const override;
  /// One line, with a hash of the rows (FNV-1a).
  [[nodiscard]] std::string text() const override;

  std::vector<Interval> rows;
  int width;
};

}  // namespace ring_attention
