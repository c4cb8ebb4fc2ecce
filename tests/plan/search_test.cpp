#include "plan/search.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "plan/best_ulysses.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"
#include "support/input_error.hpp"

namespace ring_attention::plan {
namespace {

using test::expect_input_error;

const Machine h100 = machine_named("8xh100");
const ModelShape llama = model_named("llama-3-8b");

TEST(Candidates, EveryMeshIsPossibleAndMultipliesToTheRanks) {
  const auto all = candidates({llama, Phase::training, 131072, 4}, h100, 64);
  EXPECT_GT(all.size(), 20);
  for (const Candidate& a : all) {
    EXPECT_EQ(a.mesh.ranks(), 64);
    EXPECT_TRUE(can_share_heads(32, 8, a.mesh.tensor));
    EXPECT_TRUE(can_share_heads(32, 8, Index{a.mesh.tensor} * a.mesh.ulysses) || a.mesh.tensor > 8);
    EXPECT_EQ(4 % a.mesh.data, 0);
  }
}

TEST(Candidates, ThoseThatFitComeFirstAndTheFastestOfThem) {
  const auto all = candidates({llama, Phase::training, 1 << 20, 1}, h100, 16);
  bool fitted = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(fitted || !all[i].fits);
    EXPECT_EQ(all[i].fits, sum(all[i].memory) <= usable_memory * h100.memory);
    if (i > 0 && all[i].fits) {
      EXPECT_GE(all[i].seconds(), all[i - 1].seconds());
    }
    fitted = all[i].fits;
  }
}

TEST(Candidates, AWishIsKept) {
  for (const Candidate& a :
       candidates({llama, Phase::training, 131072, 1}, h100, 32, {.tensor = 2, .ulysses = 4})) {
    EXPECT_EQ(a.mesh.tensor, 2);
    EXPECT_EQ(a.mesh.ulysses, 4);
    EXPECT_EQ(a.mesh.ring, 4);
  }
}

TEST(Candidates, UlyssesInsideTheNodeAndARingBetweenNodes) {  // the rule of USP, arXiv 2405.07719
  const Workload work{model_named("llama-7b"), Phase::prefill, 1 << 20, 1};
  const auto all = candidates(work, h100, 32, {.tensor = 1});
  EXPECT_EQ(all.front().mesh, (Mesh{1, 8, 4, 1}));
}

TEST(Candidates, BadInputSaysWhatWouldDo) {
  const Workload work{llama, Phase::training, 131072, 1};
  expect_input_error([&] { (void)candidates(work, h100, 64, {.ulysses = 64}); }, "use 1, 2, 4, 8, 16, 32");
  expect_input_error([&] { (void)candidates(work, h100, 24, {.tensor = 3}); }, "use 1, 2, 4, 8, 16, 32");
  expect_input_error([&] { (void)candidates(work, h100, 64, {.tensor = 4, .ring = 3}); },
                     "must divide the number of ranks");
  expect_input_error([&] { (void)candidates(work, h100, 64, {.data = 2}); }, "must divide the batch, 1");
  expect_input_error([&] { (void)candidates({llama, Phase::decode, 100, 1}, h100, 8, {.ulysses = 2}); },
                     "decode");
  expect_input_error([&] { (void)candidates({llama, Phase::prefill, 2, 1}, h100, 1 << 16); }, "fewer ranks");
}

// 12 query heads share 6 KV heads: a tensor rank of two has 6 and 3 of them.
TEST(Candidates, UlyssesSharesTheHeadsOfATensorRank) {
  ModelShape model = llama;
  model.hidden = 1536;
  model.heads = 12;
  model.kv_heads = 6;
  expect_input_error(
      [&] { (void)candidates({model, Phase::prefill, 4096, 1}, h100, 4, {.tensor = 2, .ulysses = 2}); },
      "cannot share 6 heads with 3 KV heads: use 1, 3, 6");
}

TEST(Neighbours, DifferByAFactorOfTwo) {
  const auto chosen = with_neighbours(candidates({llama, Phase::training, 1 << 20, 1}, h100, 64));
  ASSERT_EQ(chosen.size(), 3);
  for (std::size_t i = 1; i < 3; ++i) {
    int differing = 0;
    const Mesh &a = chosen[0].mesh, &b = chosen[i].mesh;
    for (const auto& [x, y] : {std::pair(a.tensor, b.tensor), std::pair(a.ulysses, b.ulysses),
                               std::pair(a.ring, b.ring), std::pair(a.data, b.data)}) {
      EXPECT_TRUE(x == y || x == 2 * y || 2 * x == y);
      differing += x == y ? 0 : 1;
    }
    EXPECT_EQ(differing, 2);
  }
}

TEST(LongestContextOfRanks, IsThatOfItsBestMesh) {
  const Workload work{llama, Phase::training, 0, 1};
  const Longest longest = longest_context(work, h100, 8);
  EXPECT_GT(longest.tokens, 1e5);
  EXPECT_EQ(longest.tokens, longest_context(work, longest.mesh, h100));
  EXPECT_GT(longest_context(work, h100, 64).tokens, 8 * longest.tokens);
}

TEST(EnoughRanks, IsTheFirstThatFits) {
  const Workload work{model_named("llama-3-405b"), Phase::training, 1 << 17, 1};
  const auto ranks = enough_ranks(work, h100, 8);
  ASSERT_TRUE(ranks.has_value());
  EXPECT_TRUE(candidates(work, h100, *ranks).front().fits);
  EXPECT_FALSE(candidates(work, h100, *ranks / 2).front().fits);
  Machine small = h100;
  small.memory = 1;
  EXPECT_FALSE(enough_ranks(work, small, 8).has_value());
}

TEST(BestUlysses, IsAnAllowedNumberAndDependsOnTheHeads) {
  const Attention grouped{1, 131072, 128, 8, 128}, many{1, 512, 32, 32, 128};
  Machine pcie = h100;
  pcie.link.beta = 26e9;
  EXPECT_EQ(best_ulysses(grouped, 8, true, pcie), 1) << "a ring sends half of it, and hides it";
  EXPECT_EQ(best_ulysses(grouped, 8, true, h100), 8) << "the exchange is shorter than eight merges";
  EXPECT_EQ(best_ulysses(many, 8, true, h100), 8);
  EXPECT_EQ(best_ulysses({1, 512, 6, 3, 64}, 5, true, h100), 1) << "five ranks cannot share six heads";
  EXPECT_EQ(best_ulysses(many, 1, true, h100), 1);
  // On one host nothing is hidden, so the fewest bytes win: 448 against 112 units, and 14 against 70.
  EXPECT_EQ(best_ulysses({1, 4096, 32, 32, 128, 4}, 8, true, cpu_host()), 8);
  EXPECT_EQ(best_ulysses({1, 4096, 32, 1, 128, 4}, 8, true, cpu_host()), 1);
}

TEST(Candidates, TenThousandRanksAreSearchedAtOnce) {
  const auto before = std::chrono::steady_clock::now();
  const auto all = candidates({model_named("llama-3-405b"), Phase::training, 1e8, 1}, h100, 10000);
  EXPECT_FALSE(all.empty());
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10));
}

}  // namespace
}  // namespace ring_attention::plan
