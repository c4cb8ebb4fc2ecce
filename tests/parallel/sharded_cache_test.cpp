// The cache: which rank holds which token, how much memory it takes, what it refuses.

#include "ring_attention/parallel/decode/sharded_cache.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "ring_attention/core/allocation.hpp"
#include "support/input_error.hpp"
#include "support/problem.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

constexpr std::initializer_list<int> cache_ranks{1, 2, 3, 4, 5, 7};

/// Element (b, h, position, d) is its number among all of `tokens` tokens, for K; its negative for V.
Tensor<float> numbers(Index tokens, float sign) {
  Tensor<float> all({2, 3, tokens, 4});
  std::iota(all.data(), all.data() + all.size(), 1.0F);
  for (float& x : all.view().elements()) x *= sign;
  return all;
}

ShardedCache<float> cache_of(const Tensor<float>& k, const Tensor<float>& v, const Placement& prompt,
                             int rank) {
  const TokenRanges rows = prompt.ranges(rank);
  return {k.shape().seq, prompt, rank, rows_of(k, rows).view(), rows_of(v, rows).view()};
}

void append_next(ShardedCache<float>& cache, const Tensor<float>& k, const Tensor<float>& v, bool& kept) {
  const TokenRanges token{{cache.size(), 1, 1}};
  kept = cache.append(rows_of(k, token).view(), rows_of(v, token).view());
}

/// Are K and V of each position in `cache` those of the whole arrays?
bool holds_its_tokens(const ShardedCache<float>& cache, const Tensor<float>& k, const Tensor<float>& v) {
  Index first = 0;
  for (const TokenRange& range : cache.ranges()) {
    const Tensor<float> want_k = rows_of(k, {range}), want_v = rows_of(v, {range});
    for (Index b = 0; b < k.shape().batch; ++b)
      for (Index h = 0; h < k.shape().heads; ++h) {
        const KeyValue<float> got = cache.keys(b, h, first, range);
        if (got.ranges != TokenRanges{range}) return false;
        if (!std::equal(got.k.elements().begin(), got.k.elements().end(), want_k.view().head(b, h)))
          return false;
        if (!std::equal(got.v.elements().begin(), got.v.elements().end(), want_v.view().head(b, h)))
          return false;
      }
    first += range.count;
  }
  return true;
}

TEST(ShardedCache, EveryTokenIsOnOneRankWithItsKeyAndValue) {
  for (const int ranks : cache_ranks)
    for (const PlacementKind kind : placement_kinds)
      for (const auto& [prompt, capacity] :
           {std::pair<Index, Index>{0, 13}, {1, 9}, {5, 19}, {17, 40}, {12, 12}}) {
        SCOPED_TRACE(name(kind) + ", " + std::to_string(ranks) + " ranks, prompt " + std::to_string(prompt));
        const Placement placement(kind, prompt, ranks);
        const Tensor<float> k = numbers(capacity, 1), v = numbers(capacity, -1);
        std::vector<ShardedCache<float>> caches;
        for (int rank = 0; rank < ranks; ++rank) caches.push_back(cache_of(k, v, placement, rank));
        while (true) {
          std::vector<Index> held;
          for (const auto& cache : caches) {
            EXPECT_TRUE(holds_its_tokens(cache, k, v));
            const std::vector<Index> own = positions(cache.ranges());
            held.insert(held.end(), own.begin(), own.end());
          }
          std::ranges::sort(held);
          EXPECT_EQ(held, positions(whole(caches[0].size())));
          if (caches[0].size() == capacity) break;
          int keepers = 0;
          for (auto& cache : caches) {
            bool kept = false;
            append_next(cache, k, v, kept);
            keepers += kept ? 1 : 0;
          }
          EXPECT_EQ(keepers, 1);
        }
        for (const auto& cache : caches) EXPECT_EQ(count(cache.ranges()), cache.own_capacity());
      }
}

TEST(ShardedCache, GrowsByOneRangeAndAtTheSameRateOnAllRanks) {
  const Tensor<float> k = numbers(60, 1), v = numbers(60, -1);
  for (const PlacementKind kind : placement_kinds)
    for (int rank = 0; rank < 4; ++rank) {
      const Placement prompt(kind, 18, 4);
      auto cache = cache_of(k, v, prompt, rank);
      bool kept = false;
      while (cache.size() < 50) append_next(cache, k, v, kept);
      EXPECT_LE(cache.ranges().size(), prompt.ranges(rank).size() + 1);
      EXPECT_EQ(count(cache.ranges()) - prompt.tokens(rank), 8);  // of 32
      if (kind == PlacementKind::striped) {
        EXPECT_EQ(cache.ranges(), (Placement(kind, 50, 4).ranges(rank)));
      }
    }
}

TEST(ShardedCache, MemoryIsThatOfItsTokensAndTakenOnce) {
  const Tensor<float> k = numbers(1000, 1), v = numbers(1000, -1);
  for (const int ranks : cache_ranks)
    for (int rank = 0; rank < ranks; ++rank) {
      const Placement prompt(PlacementKind::zigzag, 100, ranks);
      const TokenRanges rows = prompt.ranges(rank);
      const Tensor<float> own_k = rows_of(k, rows), own_v = rows_of(v, rows), token = rows_of(k, {{0, 1, 1}});
      const Index before = allocation::current();
      ShardedCache<float> cache(1000, prompt, rank, own_k.view(), own_v.view());
      EXPECT_EQ(allocation::current() - before, 2 * (cache.own_capacity() * 2 * 3 * 4) * 4);
      EXPECT_GE(cache.own_capacity(), 1000 / ranks - 1);
      EXPECT_LE(cache.own_capacity(), 1000 / ranks + 2);
      const Index allocations = allocation::count();
      while (cache.size() < 1000) (void)cache.append(token.view(), token.view());
      EXPECT_EQ(allocation::count(), allocations);
    }
}

TEST(ShardedCache, RefusesWhatDoesNotFit) {
  const Tensor<float> k = numbers(4, 1), other({2, 2, 1, 4});
  const Placement prompt(PlacementKind::contiguous, 4, 1);
  expect_input_error([&] { ShardedCache<float>(3, prompt, 0, k.view(), k.view()); },
                     "a prompt of 4 tokens: the cache holds 3: make it as long as");
  EXPECT_NE(thrown_message([&] {
              ShardedCache<float>(9, Placement(PlacementKind::striped, 4, 2), 0, k.view(), k.view());
            }).find("other tokens"),
            std::string::npos);
  ShardedCache<float> cache(5, prompt, 0, k.view(), k.view());
  const Tensor<float> token = rows_of(k, {{0, 1, 1}});
  EXPECT_NE(thrown_message([&] { (void)cache.append(other.view(), other.view()); }).find("[2, 3, 1, 4]"),
            std::string::npos);
  EXPECT_NE(thrown_message([&] { (void)cache.append(k.view(), k.view()); }).find("[2, 3, 1, 4]"),
            std::string::npos);
  (void)cache.append(token.view(), token.view());
  EXPECT_NE(thrown_message([&] { (void)cache.append(token.view(), token.view()); }).find("full"),
            std::string::npos);
}

}  // namespace
}  // namespace ring_attention::test
