#include "ring_attention/core/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {
namespace {

// The same on every machine: computed by a second implementation, in Python.
TEST(RandomElement, ValuesArePinned) {
  const Shape shape{2, 3, 1000, 64};
  EXPECT_EQ(random_element({.seed = 1}, shape, 0, 0, 0, 0), 0x1.ae2e4c756b9b6p+0);
  EXPECT_EQ(random_element({.seed = 1}, shape, 1, 2, 999, 63), -0x1.11f398ce46c1fp-1);
  EXPECT_EQ(random_element({.seed = 7, .stream = 3}, shape, 0, 1, 500, 0), 0x1.5a73b138b5c15p+0);
  EXPECT_EQ(random_element({.seed = ~std::uint64_t{0}, .stream = 2}, shape, 1, 0, 1, 1),
            0x1.4c3c94d2275cep-4);
}

TEST(RandomElement, EveryPlaceSeedAndStreamIsAnother) {
  std::set<double> seen;
  const Shape shape{2, 2, 5, 3};
  Index drawn = 0;
  for (const std::uint64_t seed : {0U, 1U, 2U})
    for (const std::uint64_t stream : {0U, 1U, 2U, 3U})
      for (Index b = 0; b < 2; ++b)
        for (Index h = 0; h < 2; ++h)
          for (Index s = 0; s < 5; ++s)
            for (Index d = 0; d < 3; ++d, ++drawn)
              seen.insert(random_element({.seed = seed, .stream = stream}, shape, b, h, s, d));
  EXPECT_EQ(static_cast<Index>(seen.size()), drawn);
}

TEST(FillRandom, HasMeanZeroAndVarianceOne) {
  Tensor<double> array(Shape{1, 4, 1000, 50});
  fill_random<double>(array, {.seed = 5, .stream = 1});
  const auto n = static_cast<double>(array.size());
  double sum = 0;
  double squares = 0;
  double largest = 0;
  for (const double x : array.view().elements()) {
    sum += x;
    squares += x * x;
    largest = std::max(largest, std::abs(x));
  }
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(0.8 / n));  // the variance of x^2 is 4/5
  EXPECT_LE(largest, std::sqrt(3.0));
  EXPECT_GT(largest, 1.73);
}

// Neighbours are uncorrelated: rows and columns, heads, and the arrays of one seed.
TEST(FillRandom, IsUncorrelated) {
  Tensor<double> q(Shape{1, 2, 500, 40});
  Tensor<double> k(q.shape());
  fill_random<double>(q, {.seed = 1, .stream = 0});
  fill_random<double>(k, {.seed = 1, .stream = 1});
  const auto correlation = [&](const double* a, const double* b, Index n) {
    double sum = 0;
    for (Index i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum / static_cast<double>(n) * std::sqrt(static_cast<double>(n));  // in standard deviations
  };
  const Index n = q.size() / 2;
  for (const Index lag : {Index{1}, Index{40}, n})
    EXPECT_LT(std::abs(correlation(q.data(), q.data() + lag, n)), 5) << lag;
  EXPECT_LT(std::abs(correlation(q.data(), k.data(), n)), 5);
}

TEST(FillRandom, AShardIsTheSliceOfTheWhole) {
  const Shape shape{2, 3, 29, 4};
  const RandomFill fill{.seed = 11, .stream = 2, .spike_every = 4};
  Tensor<float> all(shape);
  fill_random<float>(all, fill);
  const TokenRanges cases[] = {{},
                               whole(29),
                               {{0, 1, 8}},
                               {{28, 1, 1}},
                               {{3, 4, 7}},
                               {{0, 1, 5}, {24, 1, 5}},
                               {{7, 2, 3}, {0, 1, 3}, {28, 5, 1}, {4, 1, 0}}};
  for (const TokenRanges& ranges : cases) {
    Tensor<float> shard(shape.with_seq(count(ranges)));
    fill_random<float>(shard, fill, shape, ranges);
    Tensor<float> slice(shard.shape());
    const std::vector<Index> where = positions(ranges);
    for (Index b = 0; b < shape.batch; ++b)
      for (Index h = 0; h < shape.heads; ++h)
        for (Index s = 0; s < count(ranges); ++s)
          for (Index d = 0; d < shape.dim; ++d)
            slice.view()(b, h, s, d) = all.view()(b, h, where[static_cast<std::size_t>(s)], d);
    EXPECT_TRUE(bitwise_equal(shard, slice)) << count(ranges);
  }
}

TEST(FillRandom, FloatIsTheRoundedDouble) {
  Tensor<double> wide(Shape{1, 1, 20, 3});
  Tensor<float> narrow(wide.shape());
  fill_random<double>(wide, {.seed = 3});
  fill_random<float>(narrow, {.seed = 3});
  EXPECT_TRUE(bitwise_equal(converted<float>(wide.view()), narrow));
}

TEST(FillRandom, ASpikeMultipliesAWholeToken) {
  const Shape shape{2, 2, 4000, 3};
  Tensor<double> plain(shape);
  Tensor<double> spiked(shape);
  fill_random<double>(plain, {.seed = 9, .stream = 1});
  fill_random<double>(spiked, {.seed = 9, .stream = 1, .spike_every = 16, .spike = 32});
  Index spikes = 0;
  for (Index s = 0; s < shape.seq; ++s) {
    const double factor = spiked.view()(0, 0, s, 0) / plain.view()(0, 0, s, 0);
    ASSERT_TRUE(factor == 1 || factor == 32) << factor;
    spikes += factor == 32;
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 2; ++h)
        for (Index d = 0; d < 3; ++d) ASSERT_EQ(spiked.view()(b, h, s, d), factor * plain.view()(b, h, s, d));
  }
  EXPECT_NEAR(static_cast<double>(spikes), 250, 5 * std::sqrt(250.0));
}

TEST(FillRandom, AShardThatDoesNotFitIsAnError) {
  Tensor<float> shard(Shape{1, 2, 3, 4});
  EXPECT_THROW(fill_random<float>(shard, {}, {1, 2, 9, 4}, {{0, 1, 4}}), Error);
  EXPECT_THROW(fill_random<float>(shard, {}, {1, 2, 9, 5}, {{0, 1, 3}}), Error);
  EXPECT_THROW(fill_random<float>(shard, {}, {1, 1, 9, 4}, {{0, 1, 3}}), Error);
  EXPECT_NO_THROW(fill_random<float>(shard, {}, {1, 2, 9, 4}, {{0, 1, 3}}));
}

}  // namespace
}  // namespace ring_attention
