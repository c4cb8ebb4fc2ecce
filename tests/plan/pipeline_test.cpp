#include <gtest/gtest.h>

#include "plan/search.hpp"
#include "support/input_error.hpp"

namespace ring_attention::plan {
namespace {

const Machine device = machine_named("8xh100");
const ModelShape llama_8b = model_named("llama-3-8b");  // 32 layers

Workload batches(double batch, int chunks = 1) {
  Workload work{llama_8b, Phase::training, 8192, batch};
  work.chunks = chunks;
  return work;
}

// Narayanan et al., section 2.2.1: (p - 1) / m of the ideal time, and with v chunks 1 / v of that.
TEST(Pipeline, TheBubbleIsThatOf1F1B) {
  for (const int chunks : {1, 4}) {
    const StepTime time = step_time(batches(16, chunks), {.pipeline = 8}, device);
    const double ideal = time.total() - time.bubble;
    EXPECT_NEAR(time.bubble / ideal, 7.0 / 16 / chunks, 1e-12);
  }
  const StepTime once = step_time(batches(1), {.pipeline = 8}, device);  // one micro-batch: a stage at a time
  EXPECT_NEAR(once.total(), 8 * (once.total() - once.bubble), 1e-9 * once.total());
}

TEST(Pipeline, ComputesWhatItsStagesComputeTogether) {
  const Workload work = batches(16);
  const StepTime alone = step_time(work, {}, device), stages = step_time(work, {.pipeline = 4}, device);
  EXPECT_NEAR(stages.linear, alone.linear / 4, 1e-9 * alone.linear);
  EXPECT_NEAR(stages.attention, alone.attention / 4, 1e-9 * alone.attention);
  EXPECT_GT(stages.stages, 0);
  EXPECT_EQ(alone.stages + alone.bubble, 0);
}

TEST(Pipeline, SendsTheResidualStreamForEachChunkAndDirection) {
  const double bytes = 8192.0 * 4096 * 2;
  const StepTime time = step_time(batches(16, 2), {.pipeline = 4}, device);  // four ranks: one node
  EXPECT_NEAR(time.stages, 2 * 16 * 2 * device.link.seconds(bytes), 1e-12);
}

// Stages are the slowest axis: where the ranks are more than a node has, the next stage is in another node.
TEST(Pipeline, SendsBetweenNodesFromTheFirstRankBeyondANode) {
  const auto stages = [](const Mesh& mesh) { return step_time(batches(16), mesh, device).stages; };
  const auto due = [](const LinkClass& link, int tensor) {
    return 2 * 16 * link.seconds(8192.0 * 4096 * 2 / tensor);
  };
  const LinkClass nic = device.shared_nic(8);
  EXPECT_NEAR(stages({.pipeline = 8}), due(device.link, 1), 1e-12);
  EXPECT_NEAR(stages({.tensor = 4, .pipeline = 2}), due(device.link, 4), 1e-12);
  EXPECT_NEAR(stages({.pipeline = 16}), due(nic, 1), 1e-12);
  EXPECT_NEAR(stages({.tensor = 8, .pipeline = 2}), due(nic, 8), 1e-12);
  EXPECT_GT(due(nic, 1), 2 * due(device.link, 1));
}

TEST(Pipeline, TheFirstStageKeepsAsManyMicroBatchesAsThereAreStages) {
  EXPECT_EQ(passes_in_flight(batches(16), {}), 1);
  EXPECT_EQ(passes_in_flight(batches(16), {.pipeline = 4}), 4);
  EXPECT_EQ(passes_in_flight(batches(2), {.pipeline = 4}), 2);      // no more than there are
  EXPECT_EQ(passes_in_flight(batches(16, 3), {.pipeline = 4}), 5);  // p + (p - 1) / v
  const auto checkpoints = [](const Workload& work, const Mesh& mesh) { return memory(work, mesh)[2].value; };
  const double one = checkpoints(batches(1), {});
  EXPECT_NEAR(checkpoints(batches(16), {.pipeline = 4}), one, 1e-6);  // 4 in flight, a quarter of the layers
  EXPECT_NEAR(checkpoints(batches(16), {}), 16 * one, 1e-3);
}

TEST(Pipeline, KeepsTheWeightsOfItsStage) {
  const double parameters = llama_8b.parameters();
  const auto state = [](const Mesh& mesh) { return memory(batches(16), mesh)[0].value; };
  EXPECT_NEAR(state({.data = 2, .pipeline = 4}), parameters * (4.0 / 4 + 12.0 / 8), 1);
  EXPECT_NEAR(state({.data = 8}), parameters * 16 / 8, 1);
  EXPECT_EQ(memory(batches(16), {.data = 2, .pipeline = 4})[1].value, 0);  // nothing is gathered
}

TEST(Pipeline, KeptActivationsSaveAForward) {
  Workload work = batches(16);
  const StepTime again = step_time(work, {}, device);
  const double checkpoints = memory(work, {})[2].value;
  work.recomputes = false;
  const double logits = 6 * 128256.0 * 4096 * 16 * 8192 / device.linear_flops;
  EXPECT_NEAR(step_time(work, {}, device).linear - logits, (again.linear - logits) * 3 / 4,
              1e-9 * again.linear);
  EXPECT_GT(memory(work, {})[2].value, 4 * checkpoints);
}

TEST(Pipeline, IsKeptBySearch) {
  MeshWish wish;
  wish.pipeline = 4;
  for (const Candidate& a : candidates(batches(16), device, 64, wish)) {
    EXPECT_EQ(a.mesh.pipeline, 4);
    EXPECT_EQ(a.mesh.ranks(), 64);
  }
}

TEST(Pipeline, BadInputSaysWhatWouldDo) {
  MeshWish wish;
  wish.pipeline = 64;
  test::expect_input_error([&] { (void)candidates(batches(16), device, 64, wish); }, "use at most 34 stages");
  wish.pipeline = 16;
  test::expect_input_error([&] { (void)candidates(batches(16, 4), device, 64, wish); },
                           "use at most 8 stages");
  Workload prefill = batches(16);
  prefill.phase = Phase::prefill;
  test::expect_input_error([&] { (void)candidates(prefill, device, 64, wish); },
                           "only training has micro-batches");
  test::expect_input_error([&] { (void)candidates(batches(16), device, 24, wish); }, "multiply to 16");
}

// 6 FLOP a parameter and token are computed at 0.7 of the peak, and once more without need.
TEST(Utilisation, OfShortSequencesIsTheRateOfProductsOverTheirRecomputation) {
  const Workload work{llama_8b, Phase::training, 64, 1};
  const StepTime time = step_time(work, {}, device);
  const double share = utilisation(work, {}, device, time.total());
  EXPECT_GT(share, 0.7 * 3 / 4);
  EXPECT_LT(share, 0.7);
  EXPECT_NEAR(utilisation(work, {.data = 2}, device, time.total()), share / 2, 1e-12);
}

}  // namespace
}  // namespace ring_attention::plan
