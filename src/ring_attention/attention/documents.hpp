/// \file
/// `Documents`: packed sequences, several documents one after the other.
#pragma once

#include <vector>

#include "ring_attention/core/index.hpp"

namespace ring_attention {

/// Where packed documents begin and end. A query sees only keys of its own document. A position
/// outside all documents (padding; a query before the first key) sees nothing, and no query sees it.
class Documents {
 public:
  /// \param boundaries  cu_seqlens: 0, then the end of each document, not decreasing (a document may be empty),
  ///     at most 2^53
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

}  // namespace ring_attention
