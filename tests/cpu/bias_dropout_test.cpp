// Bias and dropout in the fast engines: every instruction set, float and double, any number of threads, keys in steps.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cpu/every_isa.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "support/gradients.hpp"
#include "support/masks.hpp"

namespace ring_attention::test {
namespace {

using Pieces = std::vector<TokenRanges>;

template <class T>
AttentionResult<T> forward(const Problem<T>& p, const Pieces& pieces, const CpuOptions& options) {
  CpuEngine<T> engine(p.what.scoring, options);
  engine.begin(p.q, whole(p.what.queries), p.bias);
  for (const TokenRanges& piece : pieces)
    engine.accumulate({rows_of(p.k, piece), rows_of(p.v, piece), piece});
  return engine.finish();
}

template <class T>
Gradients<T> backward(const GradientProblem<T>& problem, const Pieces& pieces, const CpuOptions& options) {
  const Problem<T>& p = problem.forward;
  const AttentionResult<T> result = forward(p, pieces, options);
  const BackwardInputs<T> attended{p.q, result.out, result.lse, problem.grad_out, p.bias};
  CpuBackward<T> engine(p.what.scoring, options);
  engine.begin(attended, whole(p.what.queries));
  Gradients<T> all = keys_in_pieces(engine, p, pieces);
  all.q = engine.finish();
  all.bias = engine.bias_gradient();
  all.sinks = sink_gradient(attended, p.what.scoring.sinks);
  return all;
}

template <class T>
class CpuBiasDropout : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuBiasDropout, Types);

TYPED_TEST(CpuBiasDropout, AgreesWithTheReferenceUnderEveryMask) {
  const Pieces in_one{whole(107)}, in_steps{{{1, 3, 36}}, {{0, 3, 36}, {2, 3, 35}}};
  const std::pair<Index, Index> extents[] = {{1, 1}, {1, 4}, {2, 1}, {2, 4}, {0, 0}};
  std::size_t i = 0;
  for (const NamedScoring& named : every_scoring(71, 107, 4, 0.3)) {
    const double dropout = i % 3 == 0 ? 0.0 : 0.3;
    const auto problem =
        make_gradient_problem<TypeParam>(with_everything(extents[i++ % 5], named.scoring, dropout));
    SCOPED_TRACE(named.name);
    for_each_isa([&](Isa isa) {
      for (const Pieces& pieces : {in_one, in_steps}) {
        EXPECT_TRUE(agrees(forward(problem.forward, pieces, {.isa = isa}), problem.forward));
        EXPECT_TRUE(agrees(backward(problem, pieces, {.isa = isa}), problem));
      }
    });
  }
}

TYPED_TEST(CpuBiasDropout, AgreesOnRandomProblems) {
  for_each_case(40, [](Dice& dice, Index index) {
    Case what = random_case(dice, index, 3);
    if (dice.one_in(2)) what.queries = dice.between(30, 90);
    what.scoring.mask.offset = what.keys - what.queries;
    what.bias_batch = dice.of<Index>({1, what.batch});
    what.bias_heads = dice.of<Index>({1, what.q().heads});
    if (dice.one_in(2)) what.scoring.dropout = {.probability = dice.real(0, 0.9), .seed = dice.bits()};
    const auto problem = make_gradient_problem<TypeParam>(what);
    if (most_visible_keys(what) < 8) return;  // the bias may hide all of so few
    for_each_isa([&](Isa isa) {
      const CpuOptions options{.threads = static_cast<int>(index % 3 + 1), .isa = isa};
      EXPECT_TRUE(agrees(backward(problem, {whole(what.keys)}, options), problem)) << to_string(what);
    });
  });
}

TYPED_TEST(CpuBiasDropout, TheNumberOfThreadsDoesNotChangeTheBits) {
  for (const auto& bias : {std::pair<Index, Index>{1, 1}, {2, 1}, {2, 4}}) {
    const auto problem =
        make_gradient_problem<TypeParam>(with_everything(bias, {0.3, Mask::causal(36)}, 0.2));
    const auto alone = backward(problem, {whole(107)}, {});
    for (const int threads : {2, 3, 5})
      EXPECT_TRUE(same_bits(backward(problem, {whole(107)}, {.threads = threads}), alone)) << threads;
  }
}

// With one KV head each thread would take a batch, and both would add to the same rows of dbias. The first thread waits
// after its first tiles: then it would be the last to add to the next ones, and their bits would be others.
TYPED_TEST(CpuBiasDropout, ThreadsDoNotShareRowsOfABiasThatBroadcasts) {
  for (const auto& [batches, heads] : {std::pair<Index, Index>{1, 4}, {1, 1}, {3, 1}}) {
    const auto problem = make_gradient_problem<TypeParam>({.batch = 3,
                                                           .kv_heads = 1,
                                                           .group = 4,
                                                           .queries = 70,
                                                           .keys = 70,
                                                           .scoring = {.scale = 0.3},
                                                           .bias_batch = batches,
                                                           .bias_heads = heads});
    const Problem<TypeParam>& p = problem.forward;
    const AttentionResult<TypeParam> result = forward(p, {whole(70)}, {});
    const auto bias_gradient = [&](int threads, const Progress& progress) {
      CpuBackward<TypeParam> engine(p.what.scoring, {.threads = threads});
      engine.begin({p.q, result.out, result.lse, problem.grad_out, p.bias}, whole(70));
      Tensor<TypeParam> grad_k(p.k.shape()), grad_v(p.v.shape());
      engine.accumulate({p.k, p.v, whole(70)}, {grad_k, grad_v}, progress);
      return engine.bias_gradient();
    };
    int tiles = 0;
    const auto wait = [&] {
      if (tiles++ < 5) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    const Tensor<TypeParam> alone = bias_gradient(1, {});
    EXPECT_TRUE(grad_bias_agrees(alone, problem));
    EXPECT_TRUE(bitwise_equal(bias_gradient(2, wait), alone)) << batches << " x " << heads;
  }
}

TYPED_TEST(CpuBiasDropout, OfProbabilityZeroHasTheSameBitsAsNone) {
  auto problem = make_gradient_problem<TypeParam>(with_everything({1, 1}, {0.3}, 0));
  const auto with = backward(problem, {whole(107)}, {});
  problem.forward.what.scoring.dropout = {};
  EXPECT_TRUE(same_bits(backward(problem, {whole(107)}, {}), with));
}

// Value j is 1 in column j and 0 elsewhere: out shows which pairs are kept.
TYPED_TEST(CpuBiasDropout, TheMaskIsTheSameInEveryInstructionSet) {
  Case what = with_everything({0, 0}, {0.1}, 0.5);
  what.dim = what.keys;
  auto problem = make_problem<TypeParam>(what);
  problem.v.fill(0);
  for (Index batch = 0; batch < 2; ++batch)
    for (Index head = 0; head < 2; ++head)
      for (Index key = 0; key < what.keys; ++key) problem.v.view()(batch, head, key, key) = 1;
  const Dropout& dropout = what.scoring.dropout;
  for_each_isa([&](Isa isa) {
    const auto got = forward(problem, {{{1, 2, 53}}, {{0, 2, 54}}}, {.threads = 2, .isa = isa});
    for (Index batch = 0; batch < 2; ++batch)
      for (Index head = 0; head < 4; ++head)
        for (Index query = 0; query < what.queries; ++query)
          for (Index key = 0; key < what.keys; ++key)
            ASSERT_EQ(got.out.view()(batch, head, query, key) != 0,
                      dropout.keeps(dropout.row(batch, head, query), key))
                << "query " << query << ", key " << key;
  });
}

TYPED_TEST(CpuBiasDropout, ABiasOfMinusInfinityNaNAndInfinity) {
  auto problem = make_gradient_problem<TypeParam>(with_everything({1, 1}, {0.3}, 0));
  problem.forward.what.scoring.sinks.clear();
  Tensor<TypeParam>& bias = problem.forward.bias;
  for (TypeParam& x : bias.view().row(0, 0, 5)) x = negative_infinity<TypeParam>;
  for_each_isa([&](Isa isa) {
    const auto got = forward(problem.forward, {whole(107)}, {.isa = isa});
    EXPECT_EQ(got.lse.view()(1, 2, 5), negative_infinity<TypeParam>);
    for (const TypeParam x : got.out.view().row(1, 2, 5)) EXPECT_EQ(x, 0);
    const auto gradients = backward(problem, {whole(107)}, {.isa = isa});
    for (const TypeParam x : gradients.q.view().row(1, 2, 5)) EXPECT_EQ(x, 0);
    for (const TypeParam x : gradients.bias.view().row(0, 0, 5)) EXPECT_EQ(x, 0);
    EXPECT_EQ(count_non_finite<TypeParam>(gradients.k.view()).count, 0);
  });
  for (const TypeParam wrong : {std::numeric_limits<TypeParam>::quiet_NaN(), -negative_infinity<TypeParam>}) {
    bias.view()(0, 0, 7, 50) = wrong;
    for_each_isa([&](Isa isa) {
      const auto got = forward(problem.forward, {whole(107)}, {.isa = isa});
      for (const TypeParam x : got.out.view().row(1, 2, 7)) EXPECT_TRUE(std::isnan(x));
      EXPECT_EQ(count_non_finite<TypeParam>(got.out.view()).count, 2 * 4 * 12) << "one row of each head";
    });
  }
}

}  // namespace
}  // namespace ring_attention::test
