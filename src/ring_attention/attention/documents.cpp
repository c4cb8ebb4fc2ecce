#include "ring_attention/attention/documents.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

Documents::Documents(std::vector<Index> boundaries) : boundaries_(std::move(boundaries)) {
  require(!boundaries_.empty() && boundaries_.front() == 0, "documents: the boundaries start with 0");
  require(std::is_sorted(boundaries_.begin(), boundaries_.end()), "documents: the boundaries never decrease");
  require(boundaries_.back() <= largest_position, "documents: the boundaries are at most 2^53");
}

Index Documents::of(Index position) const {
  if (position < 0 || position >= boundaries_.back()) return -1;
  const auto after = std::upper_bound(boundaries_.begin(), boundaries_.end(), position);
  return after - boundaries_.begin() - 1;
}

}  // namespace ring_attention
