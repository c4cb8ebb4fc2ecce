// Masks of several intervals: each kind as a predicate on a pair, written out here, against every function of Mask.

#include "ring_attention/attention/mask_sets.hpp"

#include <gtest/gtest.h>

#include <functional>

#include "ring_attention/core/error.hpp"
#include "support/masks.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

using Sees = std::function<bool(Index query, Index key)>;

bool in(const std::vector<Interval>& all, Index position) {
  return std::ranges::any_of(
      all, [&](const Interval& each) { return each.begin <= position && position < each.end; });
}
bool in_one(const std::vector<Interval>& all, Index a, Index b) {
  return std::ranges::any_of(all, [&](const Interval& each) {
    return each.begin <= a && a < each.end && each.begin <= b && b < each.end;
  });
}

Mask with(Mask mask, MaskSets::Sets sets) {
  mask.sets = std::make_shared<const MaskSets>(std::move(sets));
  return mask;
}
Mask with_rows(Mask mask, std::vector<Interval> rows, int width) {
  mask.sets = std::make_shared<const MaskRows>(std::move(rows), width);
  return mask;
}

/// All functions of the mask say what the predicate says: pair by pair, and of tiles.
void expect_sees(const Mask& mask, Index queries, Index keys, const Sees& sees) {
  ASSERT_EQ(mask.sets ? mask.sets->fault(queries, keys) : std::nullopt, std::nullopt);
  ASSERT_LE(mask.parts(), Intervals::most);
  for (Index query = 0; query < queries; ++query) {
    Index last = std::numeric_limits<Index>::min();
    for (int part = 0; part < mask.parts(); ++part) {
      const Interval seen = mask.visible(query, part);
      if (seen.begin >= seen.end) continue;
      EXPECT_GT(seen.begin, last) << "query " << query << ": intervals ascend and do not touch";
      last = seen.end;
    }
    for (Index key = 0; key < keys; ++key) {
      int times = 0;
      for (int part = 0; part < mask.parts(); ++part) {
        const Interval seen = mask.visible(query, part);
        times += seen.begin <= key && key < seen.end ? 1 : 0;
      }
      EXPECT_EQ(times, sees(query, key) ? 1 : 0) << "query " << query << ", key " << key;
      EXPECT_EQ(mask.allowed(query, key), sees(query, key)) << "query " << query << ", key " << key;
    }
  }
  for (const Index stride : {1, 3})
    for (Index i = 0; i < queries; i += 2)
      for (Index j = 0; j < keys; j += 3) {
        const TokenRange rows{i, stride, std::min<Index>(4, (queries - i + stride - 1) / stride)};
        const TokenRange columns{j, stride, std::min<Index>(5, (keys - j + stride - 1) / stride)};
        Index seen = 0;
        for (Index a = 0; a < rows.count; ++a)
          for (Index b = 0; b < columns.count; ++b)
            seen += sees(rows.position(a), columns.position(b)) ? 1 : 0;
        const Coverage want = seen == 0                            ? Coverage::none
                              : seen == rows.count * columns.count ? Coverage::full
                                                                   : Coverage::partial;
        EXPECT_EQ(mask.coverage(rows, columns), want) << i << " " << j << " stride " << stride;
        EXPECT_EQ(mask.any_visible({rows}, {columns}), seen > 0);
      }
}

// ---- each kind -----------------------------------------------------------------------------------------

TEST(MaskSets, APrefixSeesItselfInBothDirections) {
  expect_sees(with(Mask::causal(), {.blocks = {{0, 5}}}), 12, 12,
              [](Index i, Index j) { return j <= i || (i < 5 && j < 5); });
  expect_sees(with(Mask::causal(3), {.blocks = {{0, 5}}}), 9, 12,
              [](Index i, Index j) { return j <= i + 3 || (i + 3 < 5 && j < 5); });
}

TEST(MaskSets, BlocksSeeThemselvesInBothDirections) {
  const std::vector<Interval> images{{2, 5}, {5, 7}, {9, 12}};
  expect_sees(with(Mask::causal(), {.blocks = images}), 14, 14,
              [&](Index i, Index j) { return j <= i || in_one(images, i, j); });
  expect_sees(with({.left = 1, .right = 0}, {.blocks = images}), 14, 14, [&](Index i, Index j) {
    // The window of a token reaches out of its image.
    return (i - 1 <= j && j <= i) || in_one(images, i, j);
  });
}

TEST(MaskSets, SinkTokensAreSeenBehindTheWindow) {
  expect_sees(with({.left = 2, .right = 0}, {.sink_tokens = 3}), 15, 15,
              [](Index i, Index j) { return j <= i && (i - 2 <= j || j < 3); });
  expect_sees(with({.left = 2, .right = 1}, {.sink_tokens = 3}), 15, 15,
              [](Index i, Index j) { return (i - 2 <= j && j <= i + 1) || j < 3; });
}

TEST(MaskSets, SinkTokensAreTheFirstOnesOfEachDocument) {
  const auto documents = std::make_shared<const Documents>(std::vector<Index>{0, 4, 4, 5, 14});
  expect_sees(with({.left = 2, .right = 0, .documents = documents}, {.sink_tokens = 2}), 16, 16,
              [](Index i, Index j) {
                const auto begin_of = [](Index at) { return at < 4 ? 0 : at < 5 ? 4 : at < 14 ? 5 : -1; };
                const Index begin = begin_of(i);
                return begin >= 0 && begin == begin_of(j) && j <= i && (i - 2 <= j || j < begin + 2);
              });
}

TEST(MaskSets, GlobalTokensSeeAndAreSeenByAll) {
  const std::vector<Interval> global{{1, 3}, {8, 9}};
  expect_sees(with({.left = 1, .right = 1}, {.globals = global}), 13, 13,
              [&](Index i, Index j) { return (i - 1 <= j && j <= i + 1) || in(global, i) || in(global, j); });
  expect_sees(with({.left = 1, .right = 0}, {.globals = global}), 13, 13,
              [&](Index i, Index j) { return j <= i && (i - 1 <= j || in(global, i) || in(global, j)); });
}

TEST(MaskSets, ChunksHideWhatIsInOtherChunks) {
  expect_sees(with(Mask::causal(), {.chunk = 4}), 14, 14,
              [](Index i, Index j) { return j <= i && i / 4 == j / 4; });
  const auto documents = std::make_shared<const Documents>(std::vector<Index>{0, 6, 14});
  expect_sees(with({.right = 0, .documents = documents}, {.chunk = 4}), 14, 14, [](Index i, Index j) {
    const Index begin = i < 6 ? 0 : 6;
    return begin <= j && j <= i && (i - begin) / 4 == (j - begin) / 4;
  });
}

TEST(MaskSets, AnArraySaysWhatEachQuerySees) {
  const std::vector<Interval> rows{{0, 2}, {5, 7}, {3, 3}, {2, 9}, {1, 2}, {2, 4}, {9, 9}, {0, 0}};
  const auto listed = [&](Index i, Index j) {
    return in({rows[static_cast<std::size_t>(2 * i)], rows[static_cast<std::size_t>(2 * i + 1)]}, j);
  };
  expect_sees(with_rows({}, rows, 2), 4, 9, listed);
  expect_sees(with_rows(Mask::causal(5), rows, 2), 4, 9,
              [&](Index i, Index j) { return j <= i + 5 && listed(i, j); });
}

/// All that one mask may say, as one predicate on key positions. It does not use intervals of keys.
Sees predicate(const Mask& mask) {
  return [mask](Index query, Index key) {
    const Index at = query + mask.offset;
    Index begin = 0;
    if (mask.documents) {
      const Index own = mask.documents->of(at);
      if (own < 0 || own != mask.documents->of(key)) return false;
      begin = mask.documents->begin(own);
    }
    const bool band = at - mask.left <= key && key <= at + mask.right;
    if (const auto* array = dynamic_cast<const MaskRows*>(mask.sets.get())) {
      bool listed = false;
      for (int i = 0; i < array->width; ++i)
        listed = listed || in({array->rows[static_cast<std::size_t>(query * array->width + i)]}, key);
      return band && listed;
    }
    const MaskSets::Sets& sets = dynamic_cast<const MaskSets&>(*mask.sets).sets;
    const auto chunk_of = [&](Index position) {
      return sets.chunk > 0
                 ? std::floor(static_cast<double>(position - begin) / static_cast<double>(sets.chunk))
                 : 0;
    };
    const bool may_look = mask.right > 0 || key <= at;
    return (band && chunk_of(at) == chunk_of(key)) || in_one(sets.blocks, at, key) ||
           (may_look && (in(sets.globals, at) || in(sets.globals, key) || key < begin + sets.sink_tokens));
  };
}

TEST(MaskSets, AnyMaskAgreesWithItsPredicate) {
  Index met[Intervals::most + 1] = {};
  for_each_case(1500, [&](Dice& dice, Index) {
    const Index queries = dice.between(1, 20), keys = dice.between(1, 40);
    Mask mask{.offset = dice.one_in(4) ? dice.between(-5, 5) : keys - queries};
    if (dice.one_in(2)) mask.right = dice.one_in(2) ? 0 : dice.between(0, 4);
    if (dice.one_in(2)) mask.left = dice.between(0, 6);
    if (dice.one_in(3)) mask.documents = random_documents(dice, keys);
    mask.sets = random_sets(dice, queries, keys);
    SCOPED_TRACE(mask.sets->text());
    expect_sees(mask, queries, keys, predicate(mask));
    int most = 0;
    for (Index query = 0; query < queries; ++query) {
      int seen = 0;
      for (int part = 0; part < mask.parts(); ++part)
        seen += mask.visible(query, part).begin < mask.visible(query, part).end ? 1 : 0;
      most = std::max(most, seen);
    }
    ++met[most];
  });
  if (from_environment("RING_ATTENTION_CASE", -1) < 0) {
    EXPECT_GT(*std::ranges::min_element(std::span(met).subspan(1)), 10) << "each number has to be met often";
  }
}

// ---- Intervals -----------------------------------------------------------------------------------------

TEST(Intervals, MergeWhatTouches) {
  Intervals all;
  for (const Interval& each : std::vector<Interval>{{10, 12}, {4, 4}, {2, 3}, {20, 21}, {12, 14}, {7, 9}})
    all.add(each);
  ASSERT_EQ(all.size(), 4);
  EXPECT_EQ(all[0].begin, 2);
  EXPECT_EQ(all[2].begin, 10);
  EXPECT_EQ(all[2].end, 14);
  EXPECT_THROW(all.add({30, 31}), Error);
  all.add({3, 20});
  EXPECT_EQ(all.size(), 1);
  EXPECT_EQ(all[0].end, 21);
  EXPECT_EQ(all[1].begin, all[1].end);
}

// ---- faults --------------------------------------------------------------------------------------------

void expect_fault(const KeySets& sets, const std::string& words) {
  const std::string fault = sets.fault(3, 10).value_or("none");
  EXPECT_NE(fault.find(words), std::string::npos) << fault << "\ndue: " << words;
}
void expect_fault(MaskSets::Sets sets, const std::string& words) {
  expect_fault(MaskSets(std::move(sets)), words);
}

TEST(MaskSets, SayWhatIsWrongWithThem) {
  EXPECT_EQ(MaskSets({}).fault(3, 10), std::nullopt);
  expect_fault({.blocks = {{0, 11}}}, "0:11 is no interval begin:end of the 10 keys");
  expect_fault({.blocks = {{-1, 4}}}, "-1:4 is no interval");
  expect_fault({.blocks = {{4, 4}}}, "4:4 is no interval");
  expect_fault({.blocks = {{0, 5}, {4, 6}}}, "4:6 begins before 5");
  expect_fault({.globals = {{5, 6}, {0, 1}}}, "global tokens: 0:1 begins before 6");
  expect_fault({.globals = {{0, 1}, {2, 3}, {4, 5}}}, "query 2 could need more than four intervals");
  expect_fault({.sink_tokens = -1}, "sink tokens");
  expect_fault({.chunk = -1}, "a chunk");
  expect_fault(MaskRows({{0, 1}, {0, 1}}, 1), "2 of them, 1 for a query, and there are 3 queries");
  expect_fault(MaskRows({{0, 1}, {3, 2}, {0, 1}}, 1), "intervals of query 1: 3:2 is no interval");
  expect_fault(MaskRows({{0, 1}, {0, 11}, {0, 1}}, 1), "intervals of query 1: 0:11");
  expect_fault(MaskRows({{0, 1}, {1, 2}, {0, 3}, {2, 4}, {0, 1}, {1, 2}}, 2),
               "intervals of query 1: 2:4 begins before 3");
  expect_fault(MaskRows({{0, 1}, {1, 2}, {5, 6}, {2, 4}, {0, 1}, {1, 2}}, 2),
               "intervals of query 1: 2:4 begins before 6");
  std::vector<Interval> five;
  for (Index query = 0; query < 3; ++query)
    for (Index i = 0; i < 5; ++i) five.push_back({2 * i, 2 * i + (query == 1 || i != 2 ? 1 : 0)});
  expect_fault(MaskRows(five, 5), "intervals of query 1: 5 of them, and at most four");
  five[7].end = five[7].begin;
  expect_fault(MaskRows(five, 5), "leave out the empty ones");
}

TEST(MaskSets, TheirTextsDifferWhenTheyDo) {
  const std::vector<std::string> all{MaskSets({}).text(),
                                     MaskSets({.blocks = {{0, 3}}}).text(),
                                     MaskSets({.blocks = {{0, 2}, {2, 3}}}).text(),
                                     MaskSets({.sink_tokens = 3}).text(),
                                     MaskSets({.globals = {{0, 3}}}).text(),
                                     MaskSets({.chunk = 3}).text(),
                                     MaskRows({{0, 3}, {1, 2}}, 1).text(),
                                     MaskRows({{0, 3}, {1, 2}}, 2).text(),
                                     MaskRows({{1, 2}, {0, 3}}, 1).text()};
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < all.size(); ++b) EXPECT_EQ(all[a] == all[b], a == b);
}

}  // namespace
}  // namespace ring_attention::test
