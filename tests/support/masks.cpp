#include "support/masks.hpp"

#include <algorithm>

#include "ring_attention/attention/mask_sets.hpp"

namespace ring_attention::test {

std::shared_ptr<const Documents> some_documents(Index keys, Index missing) {
  const Index first = std::min<Index>(2, keys);
  const Index middle = std::max(first, keys / 2 + 1);
  return std::make_shared<const Documents>(std::vector<Index>{
      0, first, first, std::min(middle, keys), std::max(std::min(middle, keys), keys - missing)});
}

namespace {

/// Ascending, disjoint, not empty: at most `most` intervals of [0, keys).
std::vector<Interval> random_intervals(Dice& dice, Index keys, Index most) {
  std::vector<Interval> all;
  Index begin = 0;
  for (Index left = dice.between(1, most); left > 0 && begin < keys; --left) {
    begin = dice.between(begin, std::min(keys - 1, begin + keys / most));
    all.push_back({begin, dice.between(begin + 1, std::min(keys, begin + 1 + keys / most))});
    begin = all.back().end;
  }
  return all;
}

/// Up to `width` intervals for each query, among them empty ones.
std::shared_ptr<const MaskRows> random_rows(Dice& dice, Index queries, Index keys, int width) {
  std::vector<Interval> rows;
  for (Index query = 0; query < queries; ++query) {
    std::vector<Interval> row = random_intervals(dice, keys, width);
    if (dice.one_in(10)) row.clear();
    while (std::ssize(row) < width)
      row.insert(row.begin() + dice.between(0, std::ssize(row)), Interval{keys / 2, keys / 2});
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return std::make_shared<const MaskRows>(std::move(rows), width);
}

/// Three intervals for each query: the first key, every second query none, and some keys around its own.
std::shared_ptr<const MaskRows> some_rows(Index queries, Index keys) {
  std::vector<Interval> rows;
  for (Index query = 0; query < queries; ++query) {
    const Index begin = std::min(1 + query / 2, keys), end = std::min(begin + 3, keys);
    rows.push_back({0, query % 2});
    rows.push_back({begin, end});
    rows.push_back({std::min(end + 2, keys), std::min(end + 2 + query, keys)});
  }
  return std::make_shared<const MaskRows>(std::move(rows), 3);
}

}  // namespace

std::shared_ptr<const KeySets> random_sets(Dice& dice, Index queries, Index keys) {
  if (dice.one_in(3)) return random_rows(dice, queries, keys, static_cast<int>(dice.between(1, 4)));
  MaskSets::Sets sets;
  if (dice.one_in(2)) sets.blocks = random_intervals(dice, keys, 4);
  if (dice.one_in(2)) sets.sink_tokens = dice.between(1, 5);
  if (dice.one_in(2)) sets.globals = random_intervals(dice, keys, 2);
  if (dice.one_in(3)) sets.chunk = dice.between(1, keys);
  return std::make_shared<const MaskSets>(std::move(sets));
}

std::vector<NamedScoring> every_scoring(Index queries, Index keys, Index heads, double scale) {
  const Index offset = keys - queries;
  const auto documents = some_documents(keys);
  const std::vector<double> slopes = alibi_slopes(heads);
  const auto with = [&](Mask mask, std::vector<double> bias = {}) {
    mask.offset = offset;
    return Scoring{scale, std::move(mask), std::move(bias)};
  };
  const auto among = [&](Index begin, Index end) {
    return std::vector<Interval>(begin < keys ? 1 : 0, {begin, std::min(end, keys)});
  };
  const auto joined = [](std::vector<Interval> all, const std::vector<Interval>& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto sets = [](MaskSets::Sets of) { return std::make_shared<const MaskSets>(std::move(of)); };
  return {
      {"no mask", with({})},
      {"causal", with({.right = 0})},
      {"window 2,0", with({.left = 2, .right = 0})},
      {"window 1,2", with({.left = 1, .right = 2})},
      {"window all,1", with({.right = 1})},
      {"documents", with({.documents = documents})},
      {"documents, causal", with({.right = 0, .documents = documents})},
      {"documents that end early", with({.right = 0, .documents = some_documents(keys, 2)})},
      {"ALiBi", with({}, slopes)},
      {"ALiBi, causal", with({.right = 0}, slopes)},
      {"a prefix and a block, causal",
       with({.right = 0, .sets = sets({.blocks = joined(among(0, 3), among(5, 12))})})},
      {"sink tokens, documents, window 2,0",
       with({.left = 2, .right = 0, .documents = documents, .sets = sets({.sink_tokens = 2})})},
      {"global tokens, chunks, window 1,1, ALiBi",
       with({.left = 1, .right = 1, .sets = sets({.globals = joined(among(1, 2), among(6, 8)), .chunk = 5})},
            slopes)},
      {"three intervals a query", with({.sets = some_rows(queries, keys)})},
      {"documents, window 3,1, ALiBi", with({.left = 3, .right = 1, .documents = documents}, slopes)},
  };
}

}  // namespace ring_attention::test
