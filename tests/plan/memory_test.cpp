#include "plan/memory.hpp"

#include <gtest/gtest.h>

#include <map>

#include "ring_attention/ring/parcel.hpp"
#include "support/run.hpp"

namespace ring_attention::plan {
namespace {

/// 2 layers, 8 heads of 4, 2 KV heads, 64 hidden numbers in the feed-forward part, 100 tokens in the vocabulary.
const ModelShape tiny{"tiny", 2, 32, 8, 2, 64, 100};

std::map<std::string, double> by_name(const std::vector<Part>& parts) {
  std::map<std::string, double> all;
  for (const Part& part : parts) all[part.name] = part.value;
  return all;
}

TEST(Memory, TrainingByHand) {
  const Workload work{tiny, Phase::training, 1024, 2};
  const Mesh mesh{2, 2, 4, 2};  // 32 ranks; 128 tokens of one sequence on each
  const double layer = 2 * 32 * 32 + 2 * 32 * 8 + 3 * 32 * 64, parameters = 2 * layer + 2 * 100 * 32;
  auto parts = by_name(memory(work, mesh));
  EXPECT_EQ(parts["weights, gradients, optimiser"], 16 * parameters / 32);
  EXPECT_EQ(parts["gathered layers"], 6 * layer / 2);
  EXPECT_EQ(parts["checkpoints"], 2 * 128 * (2 * 32 * 2 + 8 * 4) / 2.0);
  // A rank of the tensor line has 4 query heads and 1 KV head, of which two ranks of Ulysses have a replica each.
  EXPECT_EQ(parts["attention"], 128 * 4 * 4 * (3 * 2 + 4) + 128 * 2 * 4 * (4 * 2 + 6 * 4));
  EXPECT_EQ(parts["feed-forward"], 6 * 2 * 128 * 64 / 2);
  EXPECT_EQ(parts["logits"], 8 * 128 * 100 / 2);
}

TEST(Memory, PrefillAndDecodeByHand) {
  const double parameters = tiny.parameters();
  auto parts = by_name(memory({tiny, Phase::prefill, 1024, 3}, {1, 1, 4, 1}));
  EXPECT_EQ(parts["weights"], 2 * parameters);
  EXPECT_EQ(parts["KV cache"], 2 * 2 * 3 * 256 * 2 * 4 * 2);
  EXPECT_EQ(parts["attention"], 3 * 256 * 32 * (2 * 2 + 4) + 3 * 256 * 8 * 2 * 4);
  EXPECT_EQ(parts["residual stream"], 2 * 3 * 256 * 32 * 2);
  EXPECT_EQ(parts["feed-forward"], 3 * 3 * 256 * 64 * 2);
  parts = by_name(memory({tiny, Phase::decode, 1024, 3}, {4, 1, 2, 1}));
  EXPECT_EQ(parts["weights"], 2 * parameters / 4);
  EXPECT_EQ(parts["KV cache"], 2 * 2 * 3 * 512 * 1 * 4 * 2) << "one of two KV heads on each of four ranks";
}

TEST(KvShards, OfARing) {
  EXPECT_EQ(ring_shards(1).forward, 2);
  EXPECT_EQ(ring_shards(64).forward,
            4);  // with q and out: the six shards of docs/notation.md, where heads are equal
  EXPECT_EQ(ring_shards(64).gradients, 6);
}

TEST(KvShards, AreThoseOfTheLibrary) {
  const Placement placement(PlacementKind::contiguous, 30, 3);
  const Shape kv{1, 2, 30, 4};
  const double shard = sizeof(float) * 2 * 10 * 4;
  KvParcel<float> parcel(kv, placement, 0);
  const Hop hop = parcel.exchange(2);  // the current and the incoming K,V
  EXPECT_EQ(static_cast<double>(hop.send.size() + hop.receive.size()), ring_shards(3).forward * shard);
}

// In float, as the CPU computes: q, out, dO, dQ, and the shards of K,V and of dK,dV, of one layer on a ring of 4 ranks. What
// the library has besides, lse, delta and a tile, is small.
TEST(Memory, OfAttentionIsWhatTheLibraryAllocates) {
  const ModelShape model{"one layer", 1, 256, 4, 2, 64, 100};
  const Workload work{.model = model, .context = 2048, .element = sizeof(float)};
  const auto problem = test::make_gradient_problem<float>(
      {.kv_heads = 2, .group = 2, .queries = 2048, .keys = 2048, .dim = 64, .kind = PlacementKind::zigzag});
  double counted = 0;
  for (const auto& rank : test::run(problem, {.rings = 4}).ranks)  // besides q, out and dO
    counted = std::max(counted,
                       static_cast<double>(rank.peak) + 0.75 * static_cast<double>(problem.grad_out.bytes()));
  const double planned = by_name(memory(work, {.ring = 4}))["attention"];
  EXPECT_GE(counted, planned);
  EXPECT_LE(counted, 1.1 * planned);
}

TEST(Memory, PublishedCaches) {
  // A LLaMA 7B token has 524 KB of keys and values, a Llama 3 8B token 131 KB.
  const auto cache = [](const char* model) {
    return memory({model_named(model), Phase::decode, 1}, {}).back().value;
  };
  EXPECT_EQ(cache("llama-7b"), 524288);
  EXPECT_EQ(cache("llama-3-8b"), 131072);
  EXPECT_EQ(cache("llama-3-405b"), 516096);
}

TEST(Memory, AnArrayOfTheScoresIsNowhere) {  // all parts grow with the tokens, none with their square
  const Mesh mesh{1, 1, 8, 1};
  for (const Phase phase : {Phase::training, Phase::prefill, Phase::decode}) {
    const auto bytes = [&](double tokens) { return sum(memory({tiny, phase, tokens}, mesh)); };
    EXPECT_NEAR(bytes(4e6) - bytes(3e6), bytes(3e6) - bytes(2e6), 1e-3);
  }
}

TEST(LongestContext, IsTheLastThatFits) {
  const Machine machine = machine_named("8xh100");
  for (const Phase phase : {Phase::training, Phase::prefill, Phase::decode}) {
    Workload work{model_named("llama-3-8b"), phase, 0, 1};
    for (const Mesh& mesh : {Mesh{1, 1, 8, 1}, Mesh{2, 4, 1, 1}, Mesh{8, 1, 1, 1}}) {
      const double tokens = longest_context(work, mesh, machine);
      work.context = tokens;
      EXPECT_TRUE(fits(work, mesh, machine)) << tokens;
      work.context = tokens + 1;
      EXPECT_FALSE(fits(work, mesh, machine)) << tokens;
    }
  }
}

TEST(LongestContext, GrowsWithTheRanksOfARing) {
  const Machine machine = machine_named("8xa100");
  const Workload work{model_named("llama-7b"), Phase::training, 0, 1};
  const double of_8 = longest_context(work, {1, 1, 8, 1}, machine),
               of_64 = longest_context(work, {1, 1, 64, 1}, machine);
  EXPECT_GT(of_64, 8 * of_8) << "the weights are in more parts, too";
  EXPECT_LT(of_64, 16 * of_8);
}

TEST(LongestContext, IsZeroWhereTheWeightsAloneDoNotFit) {
  EXPECT_EQ(longest_context({model_named("llama-3-405b"), Phase::decode, 0, 1}, {}, machine_named("8xh100")),
            0);
}

}  // namespace
}  // namespace ring_attention::plan
