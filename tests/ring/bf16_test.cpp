// K,V that travel as bf16: half the bytes, one rounding, for any number of ranks.

#include <gtest/gtest.h>

#include "ring_attention/ring/widening_engine.hpp"
#include "support/backward_runs.hpp"

namespace ring_attention::test {
namespace {

Tensor<float> rounded(const Tensor<float>& x) { return converted<float>(converted<Bf16>(x)); }

/// The problem with K and V as they are after the rounding: every rank computes with these values.
GradientProblem<float> after_rounding(const GradientProblem<float>& problem) {
  const Problem<float>& p = problem.forward;
  GradientProblem<float> exact{
      make_problem(p.what, p.q.clone(), rounded(p.k), rounded(p.v)), problem.grad_out.clone(), {}};
  exact.want = reference_backward(converted<double>(exact.forward.q), converted<double>(exact.forward.k),
                                  converted<double>(exact.forward.v), converted<double>(exact.grad_out),
                                  p.what.scoring);
  return exact;
}

/// Right: computes with what travels. Wrong: computes with its own K,V before they were rounded.
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

/// Forward and backward of all ranks.
struct RanksBothWays {
  std::vector<RankResult<float>> forward;
  std::vector<RankGradients<float>> backward;
};

RanksBothWays run(const GradientProblem<float>& problem, int ranks, bool own_unrounded = false) {
  const Problem<float>& p = problem.forward;
  RanksBothWays all{std::vector<RankResult<float>>(static_cast<std::size_t>(ranks)),
                    std::vector<RankGradients<float>>(static_cast<std::size_t>(ranks))};
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    const Placement keys(p.what.kind, p.what.keys, ranks);
    const TokenRanges rows = query_ranges(p, rank, ranks);
    const Tensor<float> q = rows_of(p.q, rows), grad_out = rows_of(problem.grad_out, rows);
    const Tensor<float> k = rows_of(p.k, keys.ranges(rank)), v = rows_of(p.v, keys.ranges(rank));
    const auto parcel = [&] {
      KvParcel<Bf16> kv(p.k.shape(), keys, rank);
      copy_rows<Bf16>(kv.k(), converted<Bf16>(p.k), keys.ranges(rank));
      copy_rows<Bf16>(kv.v(), converted<Bf16>(p.v), keys.ranges(rank));
      return kv;
    };
    const Shape shard = p.k.shape().with_seq(keys.max_tokens());
    RankResult<float>& forward = all.forward[static_cast<std::size_t>(rank)];
    {
      auto exact = std::make_unique<CpuEngine<float>>(p.what.scoring);
      exact->begin(q, rows);
      std::unique_ptr<Engine<Bf16>> engine;
      if (own_unrounded)
        engine = std::make_unique<OwnShardUnrounded>(std::move(exact), shard, k, v);
      else
        engine = std::make_unique<WideningEngine>(std::move(exact), shard);
      KvParcel<Bf16> kv = parcel();
      LoopbackTransport transport(world, rank, 0);
      ring_forward(*engine, transport, kv);
      forward.attended = engine->finish();
      forward.statistics = transport.statistics();
    }
    auto exact = std::make_unique<CpuBackward<float>>(p.what.scoring);
    exact->begin({q, forward.attended.out, forward.attended.lse, grad_out}, rows);
    WideningBackward engine(std::move(exact), shard);
    KvParcel<Bf16> kv = parcel();
    KvParcel<float> gradients(p.k.shape(), keys, rank);
    LoopbackTransport kv_transport(world, rank, 0), gradient_transport(world, rank, 1);
    ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
    RankGradients<float>& backward = all.backward[static_cast<std::size_t>(rank)];
    backward.gradients = {engine.finish(), converted<float>(View<const float>(gradients.k())),
                          converted<float>(View<const float>(gradients.v()))};
    backward.kv = kv_transport.statistics();
    backward.gradient = gradient_transport.statistics();
  });
  return all;
}

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
      const RanksBothWays got = run(problem, ranks);
      EXPECT_TRUE(all_agree(got.forward, exact.forward)) << ranks << " ranks";
      EXPECT_TRUE(agrees(gathered(got.backward, exact), exact)) << ranks << " ranks";
    }
  }
}

TEST(Bf16Parcels, IsOffFromTheUnroundedByItsUnit) {
  const auto problem = a_problem();
  const Reference& want = problem.forward.want;
  const RanksBothWays got = run(problem, 1);
  const auto error_within = [&](double unit) {
    return compare(got.forward[0].attended.out, want.out,
                   attention_tolerance<float>(53, want.max_abs_score, want.max_abs_value, unit))
        .ok;
  };
  EXPECT_TRUE(error_within(Bf16::unit));
  EXPECT_FALSE(error_within(0)) << "then nothing was rounded";
}

TEST(Bf16Parcels, AnOwnShardThatIsNotRoundedIsNoticed) {
  const auto problem = a_problem();
  const auto exact = after_rounding(problem);
  EXPECT_FALSE(all_agree(run(problem, 3, true).forward, exact.forward));
}

TEST(Bf16Parcels, SendsHalfTheBytesForwardAndFloatGradients) {
  const auto problem = a_problem();
  const Index all = 2 * problem.what().kv().size();
  for (const int ranks : {2, 3}) {
    const RanksBothWays got = run(problem, ranks);
    const Placement keys(problem.what().kind, problem.what().keys, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const Index not_sent = 2 * problem.what().kv().with_seq(keys.tokens(Ring{rank, ranks}.next())).size();
      EXPECT_EQ(got.forward[at].statistics.bytes_sent, 2 * (all - not_sent));
      EXPECT_EQ(got.backward[at].kv.bytes_sent, 2 * (all - not_sent));
      EXPECT_EQ(got.backward[at].gradient.bytes_sent, 4 * all);
    }
  }
}

}  // namespace
}  // namespace ring_attention::test
