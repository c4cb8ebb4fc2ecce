// K,V that travel as bf16: half the bytes, one rounding, for any number of ranks.

#include <gtest/gtest.h>

#include "support/run.hpp"

namespace ring_attention::test {
namespace {

Tensor<float> rounded(const Tensor<float>& x) { return converted<float>(converted<Bf16>(x)); }

/// The problem with K and V as they are after the rounding: every rank computes with these values.
GradientProblem<float> after_rounding(const GradientProblem<float>& problem) {
  const Problem<float>& p = problem.forward;
  return make_gradient_problem(make_problem(p.what, p.q.clone(), rounded(p.k), rounded(p.v)),
                               problem.grad_out.clone());
}

/// Right: computes with what travels. Wrong: a rank computes with its own K,V before they were rounded.
class OwnShardUnrounded : public Engine<Bf16> {
 public:
  OwnShardUnrounded(std::unique_ptr<CpuEngine<float>> engine, const Shape& shard, View<const float> k,
                    View<const float> v)
      : exact_(*engine), widening_(std::move(engine), shard), k_(k), v_(v) {}
  void accumulate(const KeyValue<Bf16>& kv, const Progress& progress = {}) override {
    if (std::exchange(first_, false))
      exact_.accumulate({k_, v_, kv.ranges}, progress);
    else
      widening_.accumulate(kv, progress);
  }
  [[nodiscard]] AttentionResult<float> finish() override { return widening_.finish(); }

 private:
  CpuEngine<float>& exact_;
  WideningEngine widening_;
  View<const float> k_, v_;
  bool first_ = true;
};

/// The device of such engines: it keeps where K and V of each rank, which is a thread, came from.
class UnroundedDevice : public CpuDevice<float, Bf16> {
 public:
  [[nodiscard]] std::unique_ptr<Engine<Bf16>> forward(const Scoring& scoring, View<const float> q,
                                                      const TokenRanges& ranges, View<const float> bias,
                                                      const ExpectedKeys& keys) const override {
    auto exact = std::make_unique<CpuEngine<float>>(scoring);
    exact->begin(q, ranges, bias);
    return std::make_unique<OwnShardUnrounded>(std::move(exact), keys.largest, own_k, own_v);
  }
  void place(View<Bf16> shard, View<const float> array) const override {
    own_k = std::exchange(own_v, array);  // K first
    CpuDevice<float, Bf16>::place(shard, array);
  }

 private:
  static inline thread_local View<const float> own_k, own_v;
};

GradientProblem<float> a_problem(PlacementKind kind = PlacementKind::zigzag) {
  return make_gradient_problem<float>({.batch = 2,
                                       .group = 2,
                                       .queries = 45,
                                       .keys = 53,
                                       .dim = 16,
                                       .scoring = {0.25, Mask::causal(53 - 45)},
                                       .kind = kind});
}

TEST(Bf16Parcels, IsExactAttentionOfTheRoundedKeysAndValuesOnAnyNumberOfRanks) {
  for (const PlacementKind kind :
       {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
    const auto problem = a_problem(kind);
    const auto exact = after_rounding(problem);
    for (const int ranks : {1, 2, 3, 4, 7}) {
      const auto got = run(problem, {.rings = ranks}, CpuDevice<float, Bf16>());
      EXPECT_TRUE(agrees(got, exact)) << ranks << " ranks";
    }
  }
}

TEST(Bf16Parcels, IsOffFromTheUnroundedByItsUnit) {
  const auto problem = a_problem();
  const Reference& want = problem.forward.want;
  const auto got = run(problem, {}, CpuDevice<float, Bf16>());
  const auto error_within = [&](double unit) {
    return compare(got.attended.out, want.out,
                   attention_tolerance<float>(53, want.max_abs_score, want.max_abs_value, unit))
        .ok;
  };
  EXPECT_TRUE(error_within(Bf16::unit));
  EXPECT_FALSE(error_within(0)) << "then nothing was rounded";
}

TEST(Bf16Parcels, AnOwnShardThatIsNotRoundedIsNoticed) {
  const auto problem = a_problem();
  const auto exact = after_rounding(problem);
  EXPECT_TRUE(agrees(run(problem.forward, {.rings = 3}, CpuDevice<float, Bf16>()), exact.forward));
  EXPECT_FALSE(agrees(run(problem.forward, {.rings = 3}, UnroundedDevice()), exact.forward));
}

TEST(Bf16Parcels, SendsHalfTheBytesForwardAndFloatGradients) {
  const auto problem = a_problem();
  for (const int ranks : {2, 3})
    EXPECT_TRUE(sent_what_it_should(run(problem, {.rings = ranks}, CpuDevice<float, Bf16>()), problem.what(),
                                    {.rings = ranks}, {sizeof(float), sizeof(Bf16)}));
}

}  // namespace
}  // namespace ring_attention::test
