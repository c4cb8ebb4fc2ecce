#include "ring_attention/attention/mask.hpp"

#include <algorithm>
#include <bit>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

Documents::Documents(std::vector<Index> boundaries) : boundaries_(std::move(boundaries)) {
  require(!boundaries_.empty() && boundaries_.front() == 0, "documents: the boundaries start with 0");
  require(std::is_sorted(boundaries_.begin(), boundaries_.end()), "documents: the boundaries never decrease");
}

Index Documents::of(Index position) const {
  if (position < 0 || position >= boundaries_.back()) return -1;
  const auto after = std::upper_bound(boundaries_.begin(), boundaries_.end(), position);
  return after - boundaries_.begin() - 1;
}

Interval Mask::visible(Index query) const {
  const Index at = query + offset;
  Interval seen{at - left, at + right + 1};
  if (documents == nullptr) return seen;
  const Index document = documents->of(at);
  if (document < 0) return {at, at};
  return {std::max(seen.begin, documents->begin(document)), std::min(seen.end, documents->end(document))};
}

Coverage Mask::coverage(const TokenRange& queries, const TokenRange& keys) const {
  const TokenRange aligned{queries.begin + offset, queries.stride, queries.count};
  const Index nearest = keys.begin - (aligned.end() - 1);  // the smallest distance
  const Index farthest = keys.end() - 1 - aligned.begin;   // the largest
  if (nearest > right || farthest < -left) return Coverage::none;
  bool full = nearest >= -left && farthest <= right;
  if (documents != nullptr) {
    const Index first_query = documents->of(aligned.begin), last_query = documents->of(aligned.end() - 1);
    const Index first_key = documents->of(keys.begin), last_key = documents->of(keys.end() - 1);
    // Outside all documents the order of the numbers means nothing.
    const bool inside = std::min({first_query, last_query, first_key, last_key}) >= 0;
    if (inside && (last_query < first_key || last_key < first_query)) return Coverage::none;
    full = full && inside && first_query == last_query && first_key == last_key && first_query == first_key;
  }
  return full ? Coverage::full : Coverage::partial;
}

bool Mask::any_visible(const TokenRanges& queries, const TokenRanges& keys) const {
  return std::ranges::any_of(queries, [&](const TokenRange& rows) {
    return std::ranges::any_of(
        keys, [&](const TokenRange& columns) { return coverage(rows, columns) != Coverage::none; });
  });
}

Scoring Scoring::of_heads(const Interval& heads) const {
  Scoring some = *this;
  for (std::vector<double>* numbers : {&some.alibi_slopes, &some.sinks})
    if (!numbers->empty())
      *numbers = std::vector<double>(numbers->begin() + heads.begin, numbers->begin() + heads.end);
  some.dropout.first_head += heads.begin;
  return some;
}

std::vector<double> alibi_slopes(Index heads) {
  require(heads >= 1, "alibi_slopes: at least one head");
  const auto below = static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<double> slopes;
  for (Index h = 1; h <= below; ++h)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(below)));
  for (Index h = 1; static_cast<Index>(slopes.size()) < heads; h += 2)
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(h) / static_cast<double>(below)));
  return slopes;
}

}  // namespace ring_attention
