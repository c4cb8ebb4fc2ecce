// Forward 5 masks scores by bits, forward 4 by comparisons: they give the same bits.

#include <gtest/gtest.h>

#include "cuda/cuda_runs.hpp"

namespace ring_attention::test {
namespace {

/// The tiles of keys have every kind of boundary: all masks, negative scales, and pieces that begin anywhere.
Case masked_case(Dice& dice, Index index) {
  Case what = random_case(dice, index, 3);
  what.batch = 1;
  what.kv_heads = 1;
  what.group = dice.between(1, 2);
  what.queries = dice.between(1, 200);
  what.keys = dice.between(100, 400);
  what.dim = dice.of<Index>({64, 72, 128});
  Scoring& scoring = what.scoring;
  scoring.scale = dice.one_in(6) ? -0.2 : dice.one_in(8) ? 0 : 0.2;
  scoring.mask.offset = dice.between(-20, what.keys);
  if (dice.one_in(2)) scoring.mask.left = dice.between(0, 200);
  if (scoring.mask.documents) scoring.mask.documents = random_documents(dice, what.keys);
  if (scoring.has_alibi()) scoring.alibi_slopes = alibi_slopes(what.q().heads);
  return what;
}

template <class T>
void expect_same_bits(const Case& what, cuda::StreamHandle stream) {
  auto [q, k, v] = random_inputs<float>(what);
  const Problem<float> problem{what, rounded<T>(q, stream), rounded<T>(k, stream), rounded<T>(v, stream), {}};
  const Placement placement(what.kind, what.keys, 2);
  const auto run = [&](const char* kernel) {
    return forward_in_pieces<T>(problem, {placement.ranges(1), placement.ranges(0)},
                                {.stream = stream, .kernel = kernel}, whole(what.queries));
  };
  EXPECT_TRUE(same_bits(run("pingpong"), run("warp-specialized"))) << to_string(what);
}

TEST(MaskByBits, HasTheBitsOfComparisons) {
  if (cuda::traits_of(cuda::current_device()).compute_capability < 90)
    GTEST_SKIP() << "the kernels need Hopper";
  const cuda::Stream stream;
  for_each_case(16, [&](Dice& dice, Index index) {
    const Case what = masked_case(dice, index);
    expect_same_bits<Bf16>(what, stream.handle());
    expect_same_bits<Fp16>(what, stream.handle());
  });
}

}  // namespace
}  // namespace ring_attention::test
