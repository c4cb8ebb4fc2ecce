// The mask of the dropout as a function and as random numbers, and what it does to attention and its gradients.

#include "ring_attention/attention/dropout.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "ring_attention/attention/dropout_hash.hpp"
#include "support/gradients.hpp"

namespace ring_attention::test {
namespace {

// ---- the function --------------------------------------------------------------------------------------

// Computed from the definition by a program in another language.
TEST(Dropout, GoldenWords) {
  const auto expect = [](const Dropout& dropout, Index batch, Index head, Index query, std::uint32_t low,
                         std::uint32_t high, std::initializer_list<std::uint32_t> words) {
    const DropoutRow row = dropout.row(batch, head, query);
    EXPECT_EQ(row.low, low);
    EXPECT_EQ(row.high, high);
    const std::uint32_t* word = words.begin();
    for (const std::uint32_t key : {0U, 1U, 2U, 65536U, 1U << 31U})
      EXPECT_EQ(dropout_word(row.low, row.high, dropout_key(key)), *word++) << "key " << key;
  };
  expect({}, 0, 0, 0, 0x9b93b094, 0xcbd37ad2, {0x22d8d8c, 0x730733c9, 0xedd58320, 0x4fffddd, 0xc55c490e});
  expect({.seed = 1}, 0, 0, 0, 0xc1a5266c, 0xfc1f9d47,
         {0xed0cb703, 0x897360f, 0x3a0f979c, 0xf1dfa0b5, 0x5c96483e});
  expect({.seed = 42, .step = 7, .layer = 3}, 1, 5, 1000, 0x83ae2fff, 0x77bba24a,
         {0x70bdabc5, 0x2a92dc5d, 0xdd01ae76, 0xf7134e0b, 0x62923be5});
  expect({.seed = (1ULL << 63U) + 5, .step = 1}, 0, 0, -3, 0xc2fcfd8d, 0xa9138fad,
         {0x6836b328, 0xe72702bb, 0x16b997dd, 0x6ce5ce42, 0x7f99f644});
}

TEST(Dropout, ThresholdAndScaleAreExact) {
  EXPECT_EQ(Dropout{}.threshold(), 1ULL << 32U);
  EXPECT_EQ(Dropout{}.scale(), 1);
  EXPECT_FALSE(Dropout{}.drops());
  EXPECT_EQ(Dropout{0.5}.threshold(), 1ULL << 31U);
  EXPECT_EQ(Dropout{0.5}.scale(), 2);
  EXPECT_TRUE(Dropout{0.5}.drops());
  EXPECT_EQ(Dropout{0.1}.threshold(), 3865470566U);  // floor(0.9 * 2^32)
  EXPECT_DOUBLE_EQ(Dropout{0.1}.scale(), 4294967296.0 / 3865470566.0);
  EXPECT_EQ(Dropout{1e-17}.threshold(), 1ULL << 32U);
  EXPECT_FALSE(Dropout{1e-17}.drops()) << "1 - p rounds to 1";
  EXPECT_EQ(Dropout{1 - 0x1p-32}.threshold(), 1);
  for (const double good : {0.0, 0.1, 1 - 0x1p-32}) EXPECT_TRUE(Dropout{good}.valid()) << good;
  for (const double bad : {-0.1, 1.0, 1.5, 1 - 0x1p-33, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()})
    EXPECT_FALSE(Dropout{bad}.valid()) << bad;
}

// ---- the random numbers --------------------------------------------------------------------------------

/// 1 for a pair that is kept, of `rows` queries and 1024 keys.
struct Mask01 {
  Dropout dropout;
  Index batch = 0, head = 0, first_query = 0, first_key = 0;

  [[nodiscard]] std::vector<char> of(Index rows) const {
    std::vector<char> kept;
    for (Index query = 0; query < rows; ++query) {
      const DropoutRow row = dropout.row(batch, head, first_query + query);
      for (Index key = 0; key < 1024; ++key)
        kept.push_back(static_cast<char>(dropout.keeps(row, first_key + key)));
    }
    return kept;
  }
};

// 5 sigma of a binomial distribution.
TEST(DropoutStatistics, TheMeanIsThatOfTheProbability) {
  for (const double p : {0.01, 0.1, 0.5, 0.9})
    for (const Index first : {0, 1 << 20}) {
      const std::vector<char> kept = Mask01{{p, 3}, 0, 0, first, first}.of(1024);
      const auto n = static_cast<double>(kept.size());
      const auto sum = static_cast<double>(std::ranges::count(kept, char{1}));
      EXPECT_LE(std::abs(sum - n * (1 - p)), 5 * std::sqrt(n * p * (1 - p))) << p;
    }
}

/// How often two masks agree, in sigma from what independent ones of p = 1/2 would do.
double agreement(const Mask01& a, const Mask01& b) {
  const std::vector<char> x = a.of(1024), y = b.of(1024);
  double equal = 0;
  for (std::size_t i = 0; i < x.size(); ++i) equal += x[i] == y[i] ? 1 : 0;
  const auto n = static_cast<double>(x.size());
  return (equal - n / 2) / std::sqrt(n / 4);
}

TEST(DropoutStatistics, NeighboursAreNotCorrelated) {
  for (const std::uint64_t seed : {0u, 1u, 12345u}) {
    const Mask01 mask{{0.5, seed}};
    const auto expect_independent = [&](const char* of, auto change) {
      Mask01 other = mask;
      change(other);
      EXPECT_LE(std::abs(agreement(mask, other)), 5) << of << ", seed " << seed;
    };
    for (const Index distance : {1, 2, 64, 1024}) {
      expect_independent("keys", [&](Mask01& m) { m.first_key += distance; });
      expect_independent("queries", [&](Mask01& m) { m.first_query += distance; });
    }
    expect_independent("keys and queries", [](Mask01& m) { ++m.first_key, ++m.first_query; });
    expect_independent("heads", [](Mask01& m) { ++m.head; });
    expect_independent("batches", [](Mask01& m) { ++m.batch; });
    expect_independent("layers", [](Mask01& m) { ++m.dropout.layer; });
    expect_independent("steps", [](Mask01& m) { ++m.dropout.step; });
    expect_independent("seeds", [](Mask01& m) { ++m.dropout.seed; });
    expect_independent("head for batch", [](Mask01& m) { m.dropout.first_head = m.dropout.first_batch + 1; });
  }
}

TEST(DropoutStatistics, NoTwoOfManyRowsAreEqual) {
  constexpr Index rows = 100'000, words = 512 / 64;
  const Dropout dropout{0.5, 9};
  std::vector<std::array<std::uint64_t, words>> masks(rows);
  for (Index query = 0; query < rows; ++query) {
    const DropoutRow row = dropout.row(0, 0, query);
    for (Index key = 0; key < 512; ++key)
      masks[static_cast<std::size_t>(query)][static_cast<std::size_t>(key / 64)] |=
          static_cast<std::uint64_t>(dropout.keeps(row, key)) << static_cast<unsigned>(key % 64);
  }
  std::ranges::sort(masks);
  EXPECT_EQ(std::ranges::adjacent_find(masks), masks.end());
}

// Two words of 32 bits a row. A function of one of them gives two of about 2^16 rows the same mask.
TEST(DropoutStatistics, BothWordsOfARowCount) {
  const auto mask = [](const DropoutRow& row) {
    std::vector<bool> kept;
    for (Index key = 0; key < 512; ++key) kept.push_back(Dropout{0.5}.keeps(row, key));
    return kept;
  };
  EXPECT_NE(mask({1, 2}), mask({1, 3}));
  EXPECT_NE(mask({1, 2}), mask({3, 2}));
}

// ---- in attention --------------------------------------------------------------------------------------

Case with_dropout(double probability) {
  Case what{.batch = 2,
            .kv_heads = 2,
            .group = 2,
            .queries = 5,
            .keys = 6,
            .dim = 3,
            .scoring = {0.6},
            .bias_batch = 1,
            .bias_heads = 4,
            .block = 4};
  what.scoring.dropout = {.probability = probability, .seed = 5, .step = 2, .layer = 1};
  return what;
}

template <class T>
class DropoutIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(DropoutIn, Types);

template <class T>
AttentionResult<T> attended(const Problem<T>& p) {
  return blockwise_forward<T>(p.q, p.k, p.v, p.what.scoring, p.what.block, p.bias);
}

TYPED_TEST(DropoutIn, OfProbabilityZeroHasTheSameBitsAsNone) {
  auto with = make_gradient_problem<TypeParam>(with_dropout(0));
  auto without = make_gradient_problem<TypeParam>(with_dropout(0));
  without.forward.what.scoring.dropout = {};
  EXPECT_TRUE(same_bits(attended(with.forward), attended(without.forward)));
  EXPECT_TRUE(same_bits(device_gradients(with), device_gradients(without)));
}

TYPED_TEST(DropoutIn, LeavesTheLseAsItIs) {
  const auto with = make_problem<TypeParam>(with_dropout(0.5)),
             without = make_problem<TypeParam>(with_dropout(0));
  EXPECT_TRUE(bitwise_equal(attended(with).lse, attended(without).lse));
  EXPECT_FALSE(bitwise_equal(attended(with).out, attended(without).out));
}

TYPED_TEST(DropoutIn, OfNearlyAllPairsLeavesNearlyNothing) {
  const auto problem = make_problem<TypeParam>(with_dropout(1 - 0x1p-30));
  const auto got = attended(problem);
  for (const TypeParam x : got.out.view().elements()) EXPECT_EQ(x, 0);
}

// The mean over many seeds is the result without dropout: the factor 1 / (1 - p) is right.
TYPED_TEST(DropoutIn, KeepsTheMean) {
  auto problem = make_problem<TypeParam>(with_dropout(0.25));
  const auto plain = attended(make_problem<TypeParam>(with_dropout(0)));
  Tensor<double> mean(problem.what.q());
  constexpr int seeds = 2000;
  for (int seed = 0; seed < seeds; ++seed) {
    problem.what.scoring.dropout.seed = static_cast<std::uint64_t>(seed);
    const auto got = attended(problem);
    for (Index i = 0; i < mean.size(); ++i) mean.data()[i] += static_cast<double>(got.out.data()[i]) / seeds;
  }
  // A value has a standard deviation of at most sqrt(p / (1 - p)) max|v| = 1 in each run.
  const Comparison comparison =
      compare(mean, converted<double>(plain.out), {.absolute = 5 / std::sqrt(double{seeds})});
  EXPECT_TRUE(comparison.ok) << describe(comparison);
}

// Some heads and batches of a larger problem, as ranks with some of the heads have them.
TYPED_TEST(DropoutIn, HeadsAndBatchesAreThoseOfTheWholeProblem) {
  const auto all = make_problem<TypeParam>(with_dropout(0.5));
  const auto want = attended(all);
  Scoring scoring = all.what.scoring;
  scoring.dropout.first_batch = 1;
  scoring.dropout.first_head = 2;
  const auto head = [](const auto& array, Index h) {
    const Shape& shape = array.shape();
    return View<const TypeParam>(array.view().head(std::min<Index>(1, shape.batch - 1), h),
                                 {1, 1, shape.seq, shape.dim});
  };
  const auto got = blockwise_forward<TypeParam>(head(all.q, 2), head(all.k, 1), head(all.v, 1), scoring, 4,
                                                head(all.bias, 2));
  EXPECT_TRUE(bitwise_equal<TypeParam>(got.out.view(), head(want.out, 2)));
}

}  // namespace
}  // namespace ring_attention::test
