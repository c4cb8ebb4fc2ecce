#include "plan/step_time.hpp"

#include <gtest/gtest.h>

#include "ring_attention/core/error.hpp"

namespace ring_attention::plan {
namespace {

/// Round numbers: 1 FLOP/s in products and attention, memory of 1e30 bytes/s, links without latency.
Machine machine(double link, double nic, Index node = 8, Index nics = 8) {
  return {"test", "by hand", 1, 1, 1e30, 1e30, node, nics, {0, link}, {0, nic}, 1};
}

/// 1 layer, 4 heads of 128, as many KV heads.
const ModelShape one_layer{"one", 1, 512, 4, 4, 1024, 10};
constexpr double layer_parameters = 4 * 512.0 * 512 + 3 * 512.0 * 1024;
constexpr double launch = 10e-6;

TEST(StepTime, PrefillOfOneRankIsItsArithmetic) {
  const StepTime time = step_time({one_layer, Phase::prefill, 100, 2}, {}, machine(1, 1));
  EXPECT_DOUBLE_EQ(time.linear, 2 * layer_parameters * 200);
  EXPECT_DOUBLE_EQ(time.attention, 4 * 2 * 512 * 100 * 101 / 2.0);
  EXPECT_EQ(time.merge + time.exposed(), 0);
}

TEST(StepTime, TrainingComputesTheLinearPartsFourTimes) {
  const StepTime time = step_time({one_layer, Phase::training, 100, 1}, {}, machine(1, 1));
  EXPECT_DOUBLE_EQ(time.linear, 4 * 2 * layer_parameters * 100 + 6.0 * 10 * 512 * 100);
  EXPECT_DOUBLE_EQ(time.attention, 4 * 512 * 5050.0 * (1 + 2.5 / 0.9));
  EXPECT_EQ(time.exposed(), 0);
}

TEST(StepTime, ARingExposesWhatItsStepsDoNotHide) {
  // 4 ranks of 25 tokens: a step is 4 * 512 * 5050 / 16 FLOP = 646400 s, a parcel 2 * 25 * 512 * 2 = 51200 bytes.
  const Workload work{one_layer, Phase::prefill, 100, 1};
  const Mesh mesh{1, 1, 4, 1};
  const RingStep fast = forward_step(work, mesh, machine(1, 1));
  EXPECT_NEAR(fast.compute, 646400 + launch, 1e-6);
  EXPECT_DOUBLE_EQ(fast.hop, 51200);
  EXPECT_EQ(step_time(work, mesh, machine(1, 1)).ring, 0);
  const StepTime slow = step_time(work, mesh, machine(0.05, 1));  // hops of 1024000 s
  EXPECT_NEAR(slow.ring, 3 * (1024000 - 646400), 1e-3);
  EXPECT_NEAR(slow.attention, 4 * 646400, 1e-6);
}

TEST(StepTime, WhereMessagesCostACoreItsTimeNothingIsHidden) {
  Machine m = machine(1, 1);
  m.hides = false;
  const Workload work{one_layer, Phase::prefill, 100, 1};
  EXPECT_DOUBLE_EQ(step_time(work, {1, 1, 4, 1}, m).ring, 3 * 51200);
  EXPECT_THROW((void)simulated_ring(work, {1, 1, 4, 1}, m), Error);
  EXPECT_GT(step_time({one_layer, Phase::training, 100, 2}, {1, 1, 1, 2}, m).weights, 0);
}

TEST(StepTime, TheLastHopOfTheGradientsIsExposed) {
  const Workload work{one_layer, Phase::training, 100, 1};
  const StepTime time = step_time(work, {1, 1, 4, 1}, machine(1, 1));
  EXPECT_DOUBLE_EQ(time.ring, 2 * 51200) << "in float: twice the bytes";
}

TEST(StepTime, UlyssesIsExposedAsAWhole) {
  const Workload work{one_layer, Phase::prefill, 100, 1};
  const StepTime time = step_time(work, {1, 4, 1, 1}, machine(2, 1));
  EXPECT_DOUBLE_EQ(time.all_to_all, 3 / 4.0 * 4 * 25 * 512 * 2 / 2);
  EXPECT_EQ(time.ring + time.merge, 0);
  Machine nodes = machine(2, 1, 4, 2);  // of two tensor ranks and two of Ulysses: all four share two NICs
  nodes.nic.alpha = 1000;
  EXPECT_DOUBLE_EQ(all_to_all_seconds(Mesh{2, 4, 1, 1}, nodes, 300), 2 * 1000 + 200 / 0.5);
}

TEST(StepTime, TensorRanksReduceTwiceALayer) {
  const Workload work{one_layer, Phase::prefill, 100, 1};
  const StepTime time = step_time(work, {4, 1, 1, 1}, machine(2, 1));
  EXPECT_DOUBLE_EQ(time.tensor, 2 * 2 * 3 / 4.0 * 100 * 512 * 2 / 2);
  EXPECT_DOUBLE_EQ(time.linear, 2 * layer_parameters * 100 / 4);
}

// q, k, v, out; q, k, v again; dO, dQ, dK, dV. The forward's all-reduces again, and the backward's.
TEST(StepTime, TrainingSendsAndMergesMoreThanAPrefill) {
  const auto times = [](Phase phase, const Mesh& mesh) {
    return step_time({one_layer, phase, 100, 1}, mesh, machine(2, 1));
  };
  const auto [prefill, training] = std::pair(Phase::prefill, Phase::training);
  const Mesh tensor{4, 1, 1, 1}, ulysses{1, 4, 1, 1}, ring{1, 1, 4, 1};
  EXPECT_DOUBLE_EQ(times(training, ulysses).all_to_all, 11 / 4.0 * times(prefill, ulysses).all_to_all);
  EXPECT_DOUBLE_EQ(times(training, tensor).tensor, 3 * times(prefill, tensor).tensor);
  EXPECT_DOUBLE_EQ(times(training, ring).merge, 2 * times(prefill, ring).merge);
}

TEST(StepTime, WeightsHideBehindALayer) {
  const Workload work{one_layer, Phase::training, 100, 2};
  EXPECT_EQ(step_time(work, {1, 1, 1, 2}, machine(1, 1)).weights, 0);
  EXPECT_GT(step_time(work, {1, 1, 1, 2}, machine(1e-3, 1)).weights, 0);
  EXPECT_EQ(step_time({one_layer, Phase::prefill, 100, 2}, {1, 1, 1, 2}, machine(1e-9, 1)).weights, 0);
}

TEST(RingLink, RingsThatLeaveANodeShareItsNics) {
  const Machine m = machine(100, 10, 8, 2);
  EXPECT_DOUBLE_EQ(ring_link({1, 1, 8, 1}, m).beta, 100) << "inside";
  EXPECT_DOUBLE_EQ(ring_link({1, 1, 16, 1}, m).beta, 10) << "one ring, one NIC";
  EXPECT_DOUBLE_EQ(ring_link({1, 1, 16, 1}, m, true).beta, 100) << "its hops inside a node";
  EXPECT_DOUBLE_EQ(ring_link({1, 4, 4, 1}, m).beta, 10 * 2 / 4.0) << "four rings, two NICs";
  EXPECT_DOUBLE_EQ(ring_link({8, 1, 4, 1}, m).beta, 10 * 2 / 8.0) << "every rank";
  EXPECT_DOUBLE_EQ(ring_link({8, 1, 4, 1}, m, true).beta, 10 * 2 / 8.0) << "no hop is inside";
}

TEST(StepTime, SmallestShardThatHidesIsTheFormulaOfLesson06) {
  // c* = e F / (2 g beta), twice that under a causal mask in zigzag placement.
  const double flops = 1e6, beta = 5e3;
  Machine m = machine(beta, beta);
  m.attention_flops = flops;
  const double smallest = 2 * 2 * flops / (2 * beta);
  const auto exposed = [&](double shard) {
    return step_time({one_layer, Phase::prefill, 8 * shard, 1}, {1, 1, 8, 1}, m).ring;
  };
  EXPECT_GT(exposed(0.98 * smallest), 0);
  EXPECT_EQ(exposed(1.02 * smallest), 0);
}

TEST(StepTime, DecodeReadsWeightsAndCacheOnce) {
  Machine m = machine(1, 1);
  m.memory_rate = 1e-3;  // slower than the arithmetic
  const StepTime time = step_time({one_layer, Phase::decode, 100, 1}, {}, m);
  EXPECT_DOUBLE_EQ(time.linear, 2 * one_layer.parameters() / 1e-3);
  EXPECT_DOUBLE_EQ(time.attention, 2 * 100 * 512 * 2 / 1e-3);
  const StepTime shared = step_time({one_layer, Phase::decode, 100, 1}, {1, 1, 4, 1}, m);
  EXPECT_DOUBLE_EQ(shared.attention, time.attention / 4);
  EXPECT_DOUBLE_EQ(shared.linear, time.linear) << "every rank has all weights";
  EXPECT_DOUBLE_EQ(shared.all_to_all, 4 * (130 + 129) * 4 * 3 / 4.0);
}

TEST(ModelFlops, OfEachPhase) {
  const double products = 2 * layer_parameters, logits = 2 * 10 * 512.0, key = 4 * 512.0;
  EXPECT_EQ(model_flops({one_layer, Phase::training, 100, 3}), 3 * 300 * (products + logits + 50.5 * key));
  EXPECT_EQ(model_flops({one_layer, Phase::prefill, 100, 3}), 300 * (products + 50.5 * key));
  EXPECT_EQ(model_flops({one_layer, Phase::decode, 100, 3}), 3 * (products + logits + 100 * key));
}

TEST(SimulatedRing, AgreesWithTheClosedFormWhereAllStepsAreAlike) {
  for (const Phase phase : {Phase::prefill, Phase::training})
    for (const double link : {1e9, 1.0, 0.05}) {
      const Workload work{one_layer, phase, 4096 * 8, 1};
      for (const Mesh& mesh : {Mesh{}, Mesh{1, 1, 8, 1}, Mesh{1, 2, 4, 1}, Mesh{2, 2, 2, 1}}) {
        const StepTime time = step_time(work, mesh, machine(link, link));
        const double closed = time.attention + time.merge + time.ring;
        EXPECT_NEAR(simulated_ring(work, mesh, machine(link, link)) / closed, 1, 0.002);
      }
    }
}

TEST(SimulatedRing, HopsInsideANodeDoNotHelpARingThatLeavesIt) {
  // A ring turns as fast as its slowest hop: with one slow hop in eight, all steps take that long, but the first ones.
  const Workload work{one_layer, Phase::prefill, 64 * 64, 1};
  const Mesh mesh{1, 1, 64, 1};
  const Machine m = machine(1e9, 0.01);
  const StepTime time = step_time(work, mesh, m);
  ASSERT_GT(time.ring, time.attention);
  EXPECT_NEAR(simulated_ring(work, mesh, m) / (time.attention + time.merge + time.ring), 1, 0.03);
}

}  // namespace
}  // namespace ring_attention::plan
