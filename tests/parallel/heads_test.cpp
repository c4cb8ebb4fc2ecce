// Who computes which heads: by hand, every rule, every refusal.

#include "ring_attention/parallel/ulysses/heads.hpp"

#include <gtest/gtest.h>

#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

std::vector<std::vector<Index>> as_lists(const std::vector<Interval>& heads) {
  std::vector<std::vector<Index>> lists;
  for (const Interval& of : heads) lists.push_back({of.begin, of.end});
  return lists;
}
using Lists = std::vector<std::vector<Index>>;

TEST(SharedHeads, BlocksOfQueryAndKeyHeads) {
  EXPECT_EQ(as_lists(shared_heads(8, 2)), (Lists{{0, 4}, {4, 8}}));
  EXPECT_EQ(as_lists(shared_heads(4, 2)), (Lists{{0, 2}, {2, 4}}));
}

TEST(SharedHeads, RanksShareAKeyHeadWhenThereAreFewer) {
  EXPECT_EQ(as_lists(shared_heads(8, 4)), (Lists{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_EQ(as_lists(shared_heads(2, 4)), (Lists{{0, 1}, {0, 1}, {1, 2}, {1, 2}}));
  EXPECT_EQ(as_lists(shared_heads(1, 3)), (Lists{{0, 1}, {0, 1}, {0, 1}}));
}

// An engine maps a query head h of a rank to the K,V head h / g of that rank. It must be the one of the whole layer.
TEST(SharedHeads, TheGroupsOfARankAreThoseOfTheLayer) {
  int allowed = 0;
  for (Index kv_heads = 1; kv_heads <= 12; ++kv_heads)
    for (Index group = 1; group <= 8; ++group)
      for (int ranks = 1; ranks <= 24; ++ranks) {
        const Index heads = group * kv_heads;
        if (!can_share_heads(heads, kv_heads, ranks)) continue;
        ++allowed;
        const std::vector<Interval> queries = shared_heads(heads, ranks),
                                    keys = shared_heads(kv_heads, ranks);
        Index next = 0;
        for (std::size_t rank = 0; rank < queries.size(); ++rank) {
          const Interval& query = queries[rank];
          const Interval& kv = keys[rank];
          EXPECT_EQ(query.begin, next);
          next = query.end;
          const Index own_group = (query.end - query.begin) / (kv.end - kv.begin);
          for (Index head = query.begin; head < query.end; ++head)
            EXPECT_EQ(kv.begin + (head - query.begin) / own_group, head / group)
                << heads << ":" << kv_heads << " over " << ranks;
        }
        EXPECT_EQ(next, heads);
      }
  EXPECT_GT(allowed, 300);
}

TEST(SharedHeads, ARefusalSaysWhyAndWhatWouldDo) {
  const auto refusal = [](Index query, Index kv, int ranks) {
    return input_error([&] { require_shareable(query, kv, ranks); });
  };
  EXPECT_EQ(refusal(6, 3, 2),
            "Ulysses over 2 ranks: 2 neither divides nor is a multiple of 3 KV heads: use 1, 3 or 6");
  EXPECT_EQ(refusal(4, 4, 3), "Ulysses over 3 ranks: 3 does not divide 4 query heads: use 1, 2 or 4");
  EXPECT_EQ(refusal(4, 1, 8), "Ulysses over 8 ranks: more than 4 query heads: use 1, 2 or 4");
  EXPECT_EQ(refusal(1, 1, 2), "Ulysses over 2 ranks: more than 1 query head: use 1");
  EXPECT_EQ(refusal(4, 2, 0), "Ulysses over 0 ranks: at least one rank computes: use 1, 2 or 4");
}

// Every number that is not refused is in the list of every refusal.
TEST(SharedHeads, TheListOfARefusalIsComplete) {
  const std::string message = input_error([] { require_shareable(12, 6, 5); });
  EXPECT_NE(message.find("use 1, 2, 3, 6 or 12"), std::string::npos) << message;
}

}  // namespace
}  // namespace ring_attention::test
