// The types of lesson 08's NUMBERS: their rounding is the library's, and the standard's.
#include "08_ring_backward/numbers/rounding.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/mix.hpp"

namespace ring_attention::lesson_08 {
namespace {

TEST(Rounding, OfBf16IsTheLibrarys) {
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(mix(i)));
    if (!std::isfinite(x) || std::abs(x) < 0x1p-126F) continue;  // subnormal ones follow below
    EXPECT_EQ(rounded(x, bf16), static_cast<float>(Bf16(x))) << x;
  }
  EXPECT_EQ(rounded(0x1.01p-126F, bf16), static_cast<float>(Bf16(0x1.01p-126F)));
  EXPECT_EQ(rounded(0x1.8p-133F, bf16), static_cast<float>(Bf16(0x1.8p-133F)));
}

TEST(Rounding, OfFp16IsThatOfIeeeHalf) {
  EXPECT_EQ(rounded(1 + 0x1p-11F, fp16), 1.0F);           // a tie, to even
  EXPECT_EQ(rounded(1 + 0x1.8p-10F, fp16), 1 + 0x1p-9F);  // the other way
  EXPECT_EQ(rounded(-2049, fp16), -2048.0F);
  EXPECT_EQ(rounded(65519, fp16), 65504.0F);
  EXPECT_EQ(rounded(65520, fp16), std::numeric_limits<float>::infinity());
  EXPECT_EQ(rounded(0x1.8p-24F, fp16), 0x1p-23F);  // subnormal: spacing 2^-24
  EXPECT_EQ(rounded(0x1p-25F, fp16), 0.0F);
}

TEST(Rounding, KeepsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(rounded(-infinity, fp16), -infinity);
  EXPECT_TRUE(std::isnan(rounded(std::nanf(""), bf16)));
}

// Rows of keys that a step hides have lse = -inf, and must not make NaN of a state.
TEST(Rounding, AStepWithoutKeysChangesNothing) {
  const Shape shape{1, 1, 4, 8};
  Tensor<float> q(shape, 0.5F), k(shape, 0.25F), v(shape, 1.0F);
  for (const Kept& kept : {Kept{.parts = true}, Kept{.out = true}, Kept{.lse = true}, Kept{.state = true}}) {
    RoundedForward engine({0.5, Mask::causal()}, q, {{4, 1, 4}}, kept);
    engine.accumulate({k, v, {{8, 1, 4}}});  // after all queries
    engine.accumulate({k, v, {{0, 1, 4}}});
    const AttentionResult<float> result = engine.finish();
    for (const float x : result.out.view().elements()) EXPECT_EQ(x, 1.0F);
  }
}

}  // namespace
}  // namespace ring_attention::lesson_08
