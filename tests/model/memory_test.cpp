// The memory of a training step, by the counter of tensors.

#include "plan/memory.hpp"
#include "model/feed_forward.hpp"
#include "model/model_runs.hpp"
#include "ring_attention/core/allocation.hpp"

namespace ring_attention::test {
namespace {

ModelShape shape_of_memory() {
  return {.vocabulary = 23,
          .first_class = 7,
          .classes = 5,
          .layers = 4,
          .width = 32,
          .heads = 2,
          .kv_heads = 2,
          .dim = 16,
          .hidden = 128};
}

/// The largest peak of a rank in a step, in bytes, the weights included.
Index peak_of_step(const MeshShape& mesh, Index seq, Index chunk = 16, Sharding sharding = Sharding::none) {
  std::vector<Index> peaks(static_cast<std::size_t>(mesh.ranks()));
  LoopbackWorld world(mesh.ranks(), {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    const ModelShape shape = shape_of_memory();
    const ModelLinks links = loopback_links(world, rank, mesh, shape);
    Transformer<float> model(shape, rank_context<float>(links, PlacementKind::zigzag, seq, 1), 1, sharding);
    model.set_chunk(chunk);
    AdamW<float> adam(model.weights());
    const Examples own = examples(RandomTask(seq), {0, 1}, model.rank_context().tokens);
    allocation::reset_peak();
    (void)train_step(model, adam, small_recipe(), own);
    peaks[static_cast<std::size_t>(rank)] = allocation::peak();
  });
  return *std::ranges::max_element(peaks);
}

// Ranks and length grow together: a rank needs the same memory.
TEST(ModelMemory, IsFlatWhenRanksAndLengthGrowTogether) {
  const Index two = peak_of_step({1, 1, 2, 1}, 1024);
  for (const int ranks : {4, 8}) {
    const Index more = peak_of_step({1, 1, ranks, 1}, Index{512} * ranks);
    EXPECT_LE(more, two + two / 100) << ranks;
    EXPECT_GE(more, two - two / 100) << ranks;
  }
}

// What grows with a rank's tokens c: the checkpoints of all layers, and a fixed number of arrays of c h numbers. The paper's
// table 1 (arXiv 2310.01889) has 6 of them, 6 b c h, for the forward of a layer: q, out, and the K,V of two ranks. A step
// has those of the backward, too.
TEST(ModelMemory, OfAStepIsThePapersFormulaAndThatOfTheBackward) {
  const ModelShape shape = shape_of_memory();
  const Index c = 256, more = peak_of_step({1, 1, 4, 1}, 8 * c) - peak_of_step({1, 1, 4, 1}, 4 * c);
  const Index checkpoints = shape.layers * 4 * c * (2 * shape.width + shape.heads);
  const double arrays = static_cast<double>(more - checkpoints) / static_cast<double>(4 * c * shape.width);
  EXPECT_GE(arrays, 6);
  EXPECT_LE(arrays, 30);
}

// No single rank could hold the activations of 4096 tokens in 6 MiB; four ranks train them.
TEST(ModelMemory, FourRanksTrainWhatOneRankCannotHold) {
  constexpr Index limit = 6 << 20;
  EXPECT_GT(peak_of_step({}, 4096), limit);
  EXPECT_LT(peak_of_step({1, 1, 4, 1}, 4096), limit);
  EXPECT_LT(peak_of_step({1, 2, 2, 1}, 4096), limit);
}

// A layer keeps x, out and lse for its backward: 2 h + heads numbers a token, with h = heads dim = width. (The paper's
// table 1 counts what one layer needs at its largest, 6 h a token: the six shards of the ring.)
TEST(ModelMemory, ALayerKeepsItsCheckpoint) {
  constexpr Index tokens = 1024;
  const auto peak = [](Index layers) {
    ModelShape shape = shape_of_memory();
    shape.layers = layers;
    Transformer<float> model(shape, one_process<float>(tokens), 1);
    const Examples own = examples(RandomTask(tokens), {0, 1}, whole(tokens));
    const Index before = allocation::current();
    allocation::reset_peak();
    (void)model.differentiate(own);
    return allocation::peak() - before;
  };
  const ModelShape shape = shape_of_memory();
  EXPECT_EQ(peak(3) - peak(2), 4 * tokens * (2 * shape.width + shape.heads));
}

// plan::memory() of this model in float. (It counts three matrices in the feed-forward part, as Llama has them, for 2 / 3 of
// the hidden numbers.) The sum of its parts is an upper bound: attention, the feed-forward part and the logits are not in
// memory at the same time.
TEST(ModelMemory, IsBoundedByAPlan) {
  const auto planned = [](const ModelShape& shape, Index tokens, int ring) {
    const plan::ModelShape same{
        "", shape.layers, shape.width, shape.heads, shape.kv_heads, 2 * shape.hidden / 3, shape.vocabulary};
    const plan::Workload work{
        .model = same, .context = static_cast<double>(tokens), .element = sizeof(float)};
    return plan::memory(work, {.ring = ring});
  };
  for (const Index shard : {256, 1024}) {
    const auto counted = static_cast<double>(peak_of_step({1, 1, 4, 1}, 4 * shard, 4096, Sharding::fsdp));
    const double bound = plan::sum(planned(shape_of_memory(), 4 * shard, 4));
    EXPECT_GE(bound, counted) << shard;
    EXPECT_LE(bound, 1.5 * counted) << shard;
  }
  const ModelShape shape = shape_of_memory();
  for (const plan::Part& part : planned(shape, 1024, 1))
    if (part.name == "checkpoints") {
      EXPECT_EQ(part.value, static_cast<double>(shape.layers * 4 * 1024 * (2 * shape.width + shape.heads)));
    }
}

// The hidden numbers, 4 h a token, are in memory for one chunk only.
TEST(ModelMemory, TheFeedForwardPartHoldsOneChunk) {
  constexpr Index tokens = 256, width = 32, hidden = 4 * width;
  const Tensor<float> y({1, 1, tokens, width}, 1), norm({1, 1, 1, width}, 1), w1({1, 1, width, hidden}, 1),
      w2({1, 1, hidden, width}, 1);
  Tensor<float> grad_norm(norm.shape()), grad_w1(w1.shape()), grad_w2(w2.shape());
  for (const Index chunk : {1, 16, 256}) {
    const auto peak = [&](auto call) {
      const Index before = allocation::current();
      allocation::reset_peak();
      (void)call();
      return allocation::peak() - before;
    };
    const FeedForward<const float> weights{norm, w1, w2};
    EXPECT_EQ(peak([&] { return feed_forward<float>(y, weights, chunk); }),
              4 * (tokens * width + chunk * (width + hidden)));
    EXPECT_EQ(peak([&] { return feed_forward_gradient<float>(y, weights, y, grad_w1, grad_w2, chunk); }),
              4 * (tokens * width + chunk * (width + 2 * hidden)));
  }
}

// FSDP: parameters, gradients and the optimiser's two moments are kept in pieces.
TEST(ModelMemory, FsdpKeepsPieces) {
  const auto kept = [](Sharding sharding) {
    Index bytes = 0;
    LoopbackWorld world(4);
    world.run([&](int rank) {
      const ModelShape shape = shape_of_memory();
      const ModelLinks links = loopback_links(world, rank, {1, 1, 2, 2}, shape);
      const Index before = allocation::current();
      Transformer<float> model(shape, rank_context<float>(links, PlacementKind::zigzag, 64, 2), 1, sharding);
      const AdamW<float> adam(model.weights());
      if (rank == 0) bytes = allocation::current() - before;
    });
    return bytes;
  };
  EXPECT_LE(std::abs(kept(Sharding::none) - 4 * kept(Sharding::fsdp)),
            4 * 4 * 5 * 4);  // pieces are rounded up
  EXPECT_LT(peak_of_step({1, 1, 4, 1}, 256, 16, Sharding::fsdp), peak_of_step({1, 1, 4, 1}, 256));
}

}  // namespace
}  // namespace ring_attention::test
