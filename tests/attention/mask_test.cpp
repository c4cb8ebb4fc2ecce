// Masks: literal truth tables, and the verdict on a whole tile against every pair of it.

#include "ring_attention/attention/scoring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "ring_attention/core/error.hpp"
#include "support/masks.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

/// One line per query, one character per key: x where the query sees the key.
std::string table(const Mask& mask, Index queries, Index keys) {
  std::string lines;
  for (Index i = 0; i < queries; ++i) {
    for (Index j = 0; j < keys; ++j) lines += mask.allowed(i, j) ? 'x' : '.';
    lines += '\n';
  }
  return lines;
}

TEST(Mask, HidesNothingUnlessAsked) {
  EXPECT_EQ(table(Mask{}, 2, 3),
            "xxx\n"
            "xxx\n");
}

TEST(Mask, CausalHidesTheUpperTriangle) {
  EXPECT_EQ(table(Mask::causal(), 4, 4),
            "x...\n"
            "xx..\n"
            "xxx.\n"
            "xxxx\n");
}

TEST(Mask, WithMoreKeysTheLastQueryIsAtTheLastKey) {
  EXPECT_EQ(table(Mask::causal(4 - 2), 2, 4),
            "xxx.\n"
            "xxxx\n");
}

TEST(Mask, WithMoreQueriesTheFirstOnesSeeNothing) {
  EXPECT_EQ(table(Mask::causal(2 - 4), 4, 2),
            "..\n"
            "..\n"
            "x.\n"
            "xx\n");
}

TEST(Mask, AWindowLooksBackSoManyKeys) {
  EXPECT_EQ(table({.left = 1, .right = 0, .offset = 0}, 4, 4),
            "x...\n"
            "xx..\n"
            ".xx.\n"
            "..xx\n");
}

TEST(Mask, AWindowMayLookAhead) {
  EXPECT_EQ(table({.left = 0, .right = 1, .offset = 1}, 3, 4),
            ".xx.\n"
            "..xx\n"
            "...x\n");
}

TEST(Mask, DocumentsDoNotSeeEachOther) {
  const auto documents = std::make_shared<const Documents>(std::vector<Index>{0, 2, 2, 5});
  EXPECT_EQ(table({.documents = documents}, 5, 5),
            "xx...\n"
            "xx...\n"
            "..xxx\n"
            "..xxx\n"
            "..xxx\n");
  EXPECT_EQ(table({.right = 0, .offset = 3, .documents = documents}, 2, 5),
            "..xx.\n"
            "..xxx\n");
}

TEST(Mask, AWindowMayLookBothWays) {
  EXPECT_EQ(table({.left = 2, .right = 1}, 5, 5),
            "xx...\n"
            "xxx..\n"
            "xxxx.\n"
            ".xxxx\n"
            "..xxx\n");
}

TEST(Mask, AWindowEndsAtTheBoundaryOfItsDocument) {
  const auto documents = std::make_shared<const Documents>(std::vector<Index>{0, 2, 5});
  EXPECT_EQ(table({.left = 1, .right = 1, .documents = documents}, 5, 5),
            "xx...\n"
            "xx...\n"
            "..xx.\n"
            "..xxx\n"
            "...xx\n");
}

TEST(Mask, WhatIsInNoDocumentSeesNothingAndIsNotSeen) {
  const auto documents = std::make_shared<const Documents>(std::vector<Index>{0, 1, 3});
  EXPECT_EQ(table({.documents = documents}, 5, 5),  // padding
            "x....\n"
            ".xx..\n"
            ".xx..\n"
            ".....\n"
            ".....\n");
  EXPECT_EQ(table({.offset = -2, .documents = documents}, 4, 4),  // two queries before the first key
            "....\n"
            "....\n"
            "x...\n"
            ".xx.\n");
}

TEST(Mask, DocumentsHaveBoundariesThatNeverDecrease) {
  const Documents documents({0, 2, 2, 5});
  const Index want[] = {-1, 0, 0, 2, 2, 2, -1};
  for (Index position = -1; position <= 5; ++position) EXPECT_EQ(documents.of(position), want[position + 1]);
  EXPECT_THROW(Documents({}), Error);
  EXPECT_THROW(Documents({1, 3}), Error);
  EXPECT_THROW(Documents({0, 3, 2}), Error);
}

TEST(Mask, CoverageOfLiteralTiles) {
  const Mask causal = Mask::causal();
  EXPECT_EQ(causal.coverage({4, 1, 4}, {0, 1, 4}), Coverage::full);
  EXPECT_EQ(causal.coverage({4, 1, 4}, {4, 1, 4}), Coverage::partial);
  EXPECT_EQ(causal.coverage({4, 1, 4}, {8, 1, 4}), Coverage::none);
  EXPECT_EQ(causal.coverage({4, 1, 4}, {0, 1, 5}), Coverage::full) << "the last key is the first query's own";
  EXPECT_EQ(causal.coverage({4, 1, 4}, {7, 1, 1}), Coverage::partial) << "only the last query sees it";
  EXPECT_EQ(Mask{}.coverage({0, 1, 4}, {100, 7, 3}), Coverage::full);
}

TokenRange random_range(Dice& dice) { return {dice.between(0, 30), dice.between(1, 5), dice.between(1, 8)}; }

Mask random_mask(Dice& dice) {
  Mask mask{.offset = dice.between(-20, 20)};
  if (dice.one_in(2)) mask.right = dice.between(0, 15);
  if (dice.one_in(2)) mask.left = dice.between(0, 15);
  if (dice.one_in(3)) mask.documents = random_documents(dice, 70);
  return mask;
}

Coverage by_every_pair(const Mask& mask, const TokenRange& queries, const TokenRange& keys) {
  Index seen = 0;
  for (Index i = 0; i < queries.count; ++i)
    for (Index j = 0; j < keys.count; ++j)
      if (mask.allowed(queries.position(i), keys.position(j))) ++seen;
  if (seen == 0) return Coverage::none;
  return seen == queries.count * keys.count ? Coverage::full : Coverage::partial;
}

TEST(Mask, CoverageAgreesWithEveryPair) {
  Index met[3] = {0, 0, 0};
  for_each_case(20000, [&](Dice& dice, Index) {
    const Mask mask = random_mask(dice);
    const auto queries = random_range(dice);
    const auto keys = random_range(dice);
    const Coverage claimed = mask.coverage(queries, keys);
    const Coverage found = by_every_pair(mask, queries, keys);
    // A band with two sides, and documents, can fall between the tokens of two ranges, or leave out a pair at
    // its corner. Then the result is `partial` where `none` or `full` is true, which costs time only.
    const bool two_sided = mask.left != Mask::unlimited && mask.right != Mask::unlimited;
    const bool cautious = (two_sided || mask.documents != nullptr) && claimed == Coverage::partial;
    EXPECT_TRUE(claimed == found || cautious)
        << static_cast<int>(claimed) << " for " << static_cast<int>(found);
    if (mask.documents == nullptr && queries.stride == 1 && keys.stride == 1) {
      EXPECT_EQ(claimed, found);
    }
    ++met[static_cast<int>(found)];
  });
  if (from_environment("RING_ATTENTION_CASE", -1) < 0) {
    EXPECT_GT(*std::ranges::min_element(met), 1000) << "each verdict has to be met often";
  }
}

// ---- ALiBi ---------------------------------------------------------------------------------------------

// The lanes get the intervals of keys that a query sees; the rest of the library tests pair by pair.
TEST(Mask, TheVisibleKeysAreThoseThatAreAllowed) {
  for (const auto& [queries, keys] : {std::pair<Index, Index>{12, 12}, {7, 13}, {13, 7}})
    for (const NamedScoring& named : every_scoring(queries, keys, 2, 1)) {
      SCOPED_TRACE(named.name);
      const Mask& mask = named.scoring.mask;
      for (Index query = 0; query < queries; ++query)
        for (Index key = 0; key < keys; ++key) {
          int seen = 0;  // never by two intervals
          for (int part = 0; part < mask.parts(); ++part) {
            const Interval all = mask.visible(query, part);
            seen += all.begin <= key && key < all.end ? 1 : 0;
          }
          EXPECT_EQ(seen, mask.allowed(query, key) ? 1 : 0) << "query " << query << ", key " << key;
        }
    }
}

TEST(Alibi, SlopesOfThePaper) {
  EXPECT_EQ(alibi_slopes(1), std::vector<double>{std::exp2(-8)});
  EXPECT_EQ(alibi_slopes(4), (std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625}));
  EXPECT_EQ(alibi_slopes(8).front(), 0.5);
  EXPECT_EQ(alibi_slopes(8).back(), std::exp2(-8));
}

TEST(Alibi, SlopesBetweenPowersOfTwo) {
  // Six heads: those of four, then the first and third of eight.
  EXPECT_EQ(alibi_slopes(6), (std::vector<double>{0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125}));
  EXPECT_THROW((void)alibi_slopes(0), Error);
}

// Written out: eight heads, 2^-1 .. 2^-8; twelve, those of eight and every second one of sixteen.
TEST(Alibi, SlopesByHand) {
  const std::vector<double> eight{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625};
  EXPECT_EQ(alibi_slopes(8), eight);
  std::vector<double> twelve = eight;
  for (const double slope : {0.70710678118654752440, 0.35355339059327376220, 0.17677669529663688110,
                             0.08838834764831844055})  // 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5
    twelve.push_back(slope);
  const std::vector<double> got = alibi_slopes(12);
  ASSERT_EQ(got.size(), twelve.size());
  for (std::size_t h = 0; h < 12; ++h) EXPECT_DOUBLE_EQ(got[h], twelve[h]) << "head " << h;
}

TEST(Alibi, TheBiasGrowsWithTheDistance) {
  Scoring scoring;
  scoring.mask.offset = 2;
  scoring.alibi_slopes = {0.5, 0.25};
  EXPECT_EQ(scoring.added(0, 1, 3), 0) << "query 1 is at position 3";
  EXPECT_EQ(scoring.added(0, 1, 1), -1.0);
  EXPECT_EQ(scoring.added(1, 1, 7), -1.0);
}

TEST(Scoring, OfSomeHeadsIsCutByHeadsOfTheLayer) {
  Scoring all;
  all.scale = 0.5;
  all.alibi_slopes = {1, 2, 3, 4};
  all.sinks = {5, 6, 7, 8};
  all.dropout = {.probability = 0.5, .seed = 3, .first_head = 10};
  const Scoring own = all.of_heads({2, 4});
  EXPECT_EQ(own.scale, 0.5);
  EXPECT_EQ(own.alibi_slopes, (std::vector<double>{3, 4}));
  EXPECT_EQ(own.sinks, (std::vector<double>{7, 8}));
  EXPECT_EQ(own.dropout.first_head, 12);
  EXPECT_EQ(own.dropout.seed, 3U);
  EXPECT_TRUE(Scoring{}.of_heads({0, 1}).alibi_slopes.empty());
  EXPECT_TRUE(Scoring{}.of_heads({0, 1}).sinks.empty());
}

}  // namespace
}  // namespace ring_attention::test
