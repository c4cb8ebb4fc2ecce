#include "14_planning/published/measurements.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ring_attention::plan {
namespace {

void expect_as_stated(const std::vector<Prediction>& rows) {
  for (const Prediction& row : rows)
    EXPECT_TRUE(row.as_stated()) << row.source << ", " << row.what << ": published " << row.published
                                 << ", predicted " << row.predicted << ", tolerance " << row.tolerance << " "
                                 << row.why_not;
}

int that_fit(const std::vector<Prediction>& rows) {
  return static_cast<int>(
      std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.within(); }));
}

TEST(Measurements, StripedAttentionToTheDigit) {
  expect_as_stated(striped_attention());
  EXPECT_EQ(that_fit(striped_attention()), 21);
}

// The mutant: attention as fast as the projections. Not one of 21 numbers is right.
TEST(Measurements, StripedAttentionCountsAttentionTwice) {
  for (const Prediction& row : striped_attention()) {
    const bool small = row.what.starts_with("1B"), middle = row.what.starts_with("3B");
    const double hidden = small ? 2048 : middle ? 3200 : 4096, ffn = small ? 5504 : middle ? 8640 : 11008;
    const double tokens = 1024 * std::stod(row.what.substr(4));
    const double once = striped_speedup(hidden, ffn, small ? 22 : middle ? 26 : 32, 32000, tokens / 2, 4);
    EXPECT_GT(std::abs(once - row.published), 0.0051) << row.what;
  }
}

TEST(Measurements, RingFlashAttention) {
  const auto rows = ring_flash_attention();
  expect_as_stated(rows);
  EXPECT_EQ(that_fit(rows), 6);                         // of 8: striped does not
  EXPECT_NEAR(rows[0].predicted, 100 * 4 / 7.5, 0.01);  // N / 2 of N - 1/2 steps
}

TEST(Measurements, MillionTokenInference) {
  const auto rows = million_token_inference();
  expect_as_stated(rows);
  EXPECT_NEAR(rows[13].predicted / 11462.15, 0.984, 0.001);
  EXPECT_NEAR(rows[14].predicted, 61.23, 0.01);
  EXPECT_NEAR(rows[15].predicted, 71.42, 0.01);
  for (std::size_t i = 3; i < 14; ++i) EXPECT_TRUE(rows[i].within()) << rows[i].what;
}

TEST(Measurements, MagiAttention) {
  const auto rows = magi_attention();
  expect_as_stated(rows);
  EXPECT_EQ(that_fit(rows), 6);  // of 7
}

TEST(Measurements, DistFlashAttentionAndLesson09) {
  expect_as_stated(dist_flash_attention());
  expect_as_stated(load_balance());
}

TEST(Measurements, PipelinesThatNothingWasFittedTo) {
  expect_as_stated(megatron_pipelines());
  expect_as_stated(llama_3_pipelines());
  EXPECT_EQ(that_fit(megatron_pipelines()), 3);  // of 6
  EXPECT_EQ(that_fit(llama_3_pipelines()), 3);   // of 3
}

TEST(Measurements, SomeRowsDoNotFitAndSayWhy) {
  int without = 0;
  for (const Prediction& row : every_prediction()) without += row.why_not.empty() ? 0 : 1;
  EXPECT_EQ(without, 2 + 3 + 1 + 3);
}

TEST(Prediction, WhatIsNotFiniteDoesNotFit) {
  Prediction row{"", "", "", 1, std::numeric_limits<double>::quiet_NaN(), 0.1};
  EXPECT_FALSE(row.within());
  row.predicted = 1.05;
  EXPECT_TRUE(row.within() && row.as_stated());
  row.why_not = "no reason";
  EXPECT_FALSE(row.as_stated());
}

TEST(PassKv, TheQueriesTravelWhereNewTokensAreFew) {
  // Yang et al.: 405B on 4 x 8 H100, 16 query heads and one KV head a rank; their curves cross between 4160 and 6400.
  const double tokens = smallest_pass_kv(4, 499e12, 1, 16, 2, 26e9);
  EXPECT_GT(tokens, 4160);
  EXPECT_LT(tokens, 6400);
}

}  // namespace
}  // namespace ring_attention::plan
