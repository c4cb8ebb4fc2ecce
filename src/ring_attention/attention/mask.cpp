#include "ring_attention/attention/mask.hpp"

#include <algorithm>
#include <span>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

void Intervals::add(Interval keys) {
  if (keys.empty()) return;
  std::array<Interval, most + 1> all{};
  std::size_t count = 0;
  bool placed = false;
  for (const Interval& each : std::span(parts_).first(static_cast<std::size_t>(size_))) {
    if (each.end < keys.begin) {
      all[count++] = each;
    } else if (keys.end < each.begin) {
      if (!placed) all[count++] = keys;
      placed = true;
      all[count++] = each;
    } else {
      keys = {std::min(keys.begin, each.begin), std::max(keys.end, each.end)};
    }
  }
  if (!placed) all[count++] = keys;
  require(count <= most, "a query sees at most four intervals of keys");
  std::copy_n(all.begin(), count, parts_.begin());
  std::fill(parts_.begin() + count, parts_.end(), Interval{0, 0});
  size_ = static_cast<int>(count);
}

bool Intervals::contains(Index key) const {
  return std::ranges::any_of(parts_,
                             [&](const Interval& part) { return part.begin <= key && key < part.end; });
}

Intervals Mask::seen(Index query) const {
  const Index at = query + offset;
  Interval document{0, unlimited};
  if (documents != nullptr) {
    const Index own = documents->of(at);
    if (own < 0) return {};
    document = {documents->begin(own), documents->end(own)};
  }
  const Interval band{std::max(at - left, document.begin), std::min(at + right + 1, document.end)};
  return sets->seen(query, at, band, document, right == 0);
}

Interval Mask::visible(Index query, int part) const {
  if (sets != nullptr) return seen(query)[part];
  const Index at = query + offset;
  Interval seen{at - left, at + right + 1};
  if (documents == nullptr) return seen;
  const Index document = documents->of(at);
  if (document < 0) return {at, at};
  return {std::max(seen.begin, documents->begin(document)), std::min(seen.end, documents->end(document))};
}

namespace {

/// Coverage of all pairs, or of as many as decide. \param seen_by  the intervals of a query
Coverage coverage_of(const TokenRange& queries, const TokenRange& keys, const auto& seen_by) {
  Index seen = 0;
  for (Index i = 0; i < queries.count; ++i) {
    const Intervals all = seen_by(queries.position(i));
    for (int part = 0; part < all.size(); ++part)
      seen += keys.before(all[part].end) - keys.before(all[part].begin);
    if (seen > 0 && seen < (i + 1) * keys.count) return Coverage::partial;
  }
  return seen > 0 ? Coverage::full : Coverage::none;
}

}  // namespace

Coverage Mask::coverage(const TokenRange& queries, const TokenRange& keys) const {
  const bool shows = sets != nullptr && sets->may_show({queries.begin + offset, queries.end() + offset},
                                                       {keys.begin, keys.end()}, documents != nullptr);
  const Coverage band = coverage_of_band(queries, keys);
  if (sets == nullptr || (band == Coverage::none && !shows)) return band;
  return coverage_of(queries, keys, [&](Index query) { return seen(query); });
}

Coverage Mask::coverage_of_band(const TokenRange& queries, const TokenRange& keys) const {
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

}  // namespace ring_attention
