// Each __syncthreads and each wait of a kernel is needed: without it some schedule of the emulator gives wrong numbers.

#include <gtest/gtest.h>

#include "cuda/cuda_runs.hpp"
#include "cuda/needed_barriers.hpp"

namespace ring_attention::test {
namespace {

/// Two tiles of queries and three tiles of keys, in two ranges. No query sees a key of the last piece's first range.
const Case what{
    .kv_heads = 1, .group = 2, .queries = 70, .keys = 250, .dim = 64, .scoring = {0.2, Mask::causal(140)}};
const std::vector<TokenRanges> pieces{{{0, 1, 90}, {100, 1, 110}}, {{210, 1, 40}, {90, 1, 10}}};

TEST(MissingBarriers, OfTheTiledForwardAreNoticed) {
  const auto problem = problem_in<float>(what, nullptr);
  expect_all_needed("tiled", [&](std::uint64_t) {
    return bool(agrees_in(0,
                          forward_in_pieces<float>(problem.forward, pieces, {.kernel = "tiled"}, whole(70)),
                          problem.forward, whole(70)));
  });
}

TEST(MissingBarriers, OfTheTiledBackwardAreNoticed) {
  const auto problem = problem_in<float>(what, nullptr);
  for (const char* kernel : {"tiled", "tiled-atomics"})
    expect_all_needed(kernel, [&](std::uint64_t) {
      return bool(
          gradients_agree_in(0, backward_in_pieces<float>(problem, pieces, {.kernel = kernel}), problem));
    });
}

/// Two heads share the bias, so a block of dBias has two tiles of queries.
TEST(MissingBarriers, OfTheBackwardWithABiasAreNoticed) {
  Case with_bias = what;
  with_bias.bias_batch = with_bias.bias_heads = 1;
  with_bias.scoring.dropout = {.probability = 0.3, .seed = 1};
  const auto problem = problem_in<float>(with_bias, nullptr);
  for (const char* kernel : {"tiled", "tiled-atomics"})
    expect_all_needed(
        kernel,
        [&](std::uint64_t) {
          return bool(
              gradients_agree_in(0, backward_in_pieces<float>(problem, pieces, {.kernel = kernel}), problem));
        },
        12, 3);
}

}  // namespace
}  // namespace ring_attention::test
