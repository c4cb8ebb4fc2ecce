// The fast backward against the reference, with every instruction set.

#include "ring_attention/cpu/backward.hpp"

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"
#include "ring_attention/core/allocation.hpp"
#include "support/gradients.hpp"
#include "support/masks.hpp"

namespace ring_attention::test {
namespace {

/// Forward and backward with the fast engines; the backward's keys in pieces, in the order given.
template <class T>
Gradients<T> in_pieces(const GradientProblem<T>& problem, const std::vector<TokenRanges>& pieces,
                       const CpuOptions& options) {
  const Problem<T>& p = problem.forward;
  CpuEngine<T> forward(p.what.scoring, options);
  forward.begin(p.q, whole(p.what.queries));
  forward.accumulate({p.k, p.v, whole(p.what.keys)});
  const AttentionResult<T> attended = forward.finish();

  CpuBackward<T> engine(p.what.scoring, options);
  engine.begin({p.q, attended.out, attended.lse, problem.grad_out}, whole(p.what.queries));
  Gradients<T> all = keys_in_pieces(engine, p, pieces);
  all.q = engine.finish();
  return all;
}

template <class T>
Gradients<T> gradients(const GradientProblem<T>& problem, const CpuOptions& options) {
  return in_pieces(problem, {whole(problem.what().keys)}, options);
}

template <class T>
void expect_agreement(const Case& what) {
  const auto problem = make_gradient_problem<T>(what);
  for_each_isa([&](Isa isa) { EXPECT_TRUE(agrees(gradients(problem, {.isa = isa}), problem)); });
}

template <class T>
class CpuBackwardIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuBackwardIn, Types);

TYPED_TEST(CpuBackwardIn, AgreesWithTheReferenceOnRandomProblems) {
  for_each_case(200, [](Dice& dice, Index index) {
    Case what = random_case(dice, index, 3);
    if (dice.one_in(3)) what.queries = dice.between(60, 140);
    if (dice.one_in(3)) what.keys = dice.between(60, 140);
    expect_agreement<TypeParam>(what);
  });
}

TYPED_TEST(CpuBackwardIn, TakesAnyHeadDim) {
  for (Index dim = 1; dim <= 256; dim += dim < 40 ? 1 : 31)
    expect_agreement<TypeParam>(
        {.group = 2, .queries = 19, .keys = 23, .dim = dim, .scoring = {0.2, Mask::causal(4)}});
}

TYPED_TEST(CpuBackwardIn, TakesAnyLengths) {
  for (const Index queries : {1, 7, 8, 9, 24, 64, 65, 130})
    for (const Index keys : {2, 3, 4, 5, 64, 65, 131})
      expect_agreement<TypeParam>({.queries = queries, .keys = keys, .dim = 20, .scoring = {0.3}});
}

TYPED_TEST(CpuBackwardIn, KnowsEveryMaskAndBias) {
  for (const auto& [queries, keys] : {std::pair<Index, Index>{100, 100}, {70, 110}, {110, 70}})
    for (const NamedScoring& named : every_scoring(queries, keys, 4, 0.3)) {
      SCOPED_TRACE(named.name);
      const auto problem = make_gradient_problem<TypeParam>(
          {.group = 2, .queries = queries, .keys = keys, .dim = 12, .scoring = named.scoring});
      for_each_isa([&](Isa isa) {
        EXPECT_TRUE(agrees(gradients(problem, {.isa = isa}), problem));
        const std::vector<TokenRanges> striped{{{1, 2, keys / 2}}, {}, {{0, 2, keys - keys / 2}}};
        EXPECT_TRUE(agrees(in_pieces(problem, striped, {.isa = isa}), problem));
        const std::vector<TokenRanges> zigzag{{{20, 1, 20}, {40, 1, keys - 60}},
                                              {{0, 1, 20}, {keys - 20, 1, 20}}};
        EXPECT_TRUE(agrees(in_pieces(problem, zigzag, {.isa = isa}), problem));
      });
    }
}

// With fewer (batch, KV head) pairs than threads it takes two passes.
TYPED_TEST(CpuBackwardIn, TheBitsDoNotDependOnTheThreads) {
  const auto problem = make_gradient_problem<TypeParam>({.batch = 1,
                                                         .kv_heads = 2,
                                                         .group = 2,
                                                         .queries = 150,
                                                         .keys = 170,
                                                         .dim = 20,
                                                         .scoring = {0.25, Mask::causal(20)}});
  for_each_isa([&](Isa isa) {
    const auto alone = gradients(problem, {.threads = 1, .isa = isa});
    EXPECT_TRUE(agrees(alone, problem));
    for (const int threads : {2, 3, 8})
      EXPECT_TRUE(same_bits(gradients(problem, {.threads = threads, .isa = isa}), alone)) << threads;
  });
}

TYPED_TEST(CpuBackwardIn, RowsThatSeeNothingHaveNone) {
  const auto problem =
      make_gradient_problem<TypeParam>({.queries = 90, .keys = 40, .scoring = {1, Mask::causal(40 - 90)}});
  for_each_isa([&](Isa isa) {
    const auto got = gradients(problem, {.isa = isa});
    EXPECT_TRUE(agrees(got, problem));
    for (Index row = 0; row < 50; ++row)
      for (const TypeParam x : got.q.view().row(0, 1, row)) EXPECT_EQ(x, 0);
  });
}

TYPED_TEST(CpuBackwardIn, AddsToWhatIsThereAndAllocatesNothing) {
  const auto problem = make_gradient_problem<TypeParam>({.queries = 60, .keys = 60});
  const Problem<TypeParam>& p = problem.forward;
  const auto attended = blockwise_forward<TypeParam>(p.q, p.k, p.v, p.what.scoring);
  Tensor<TypeParam> grad_k(p.what.kv(), 1), grad_v(p.what.kv(), 1);
  CpuBackward<TypeParam> engine(p.what.scoring);
  engine.begin({p.q, attended.out, attended.lse, problem.grad_out}, whole(60));
  const Index allocations = allocation::count();
  int reports = 0;
  engine.accumulate({p.k, p.v, whole(60)}, {grad_k, grad_v}, [&] { ++reports; });
  EXPECT_GE(reports, 2);
  EXPECT_EQ(allocation::count(), allocations);
  for (TypeParam& x : grad_k.view().elements()) x -= 1;
  for (TypeParam& x : grad_v.view().elements()) x -= 1;
  EXPECT_TRUE(agrees(Gradients<TypeParam>{engine.finish(), std::move(grad_k), std::move(grad_v)}, problem));
}

TYPED_TEST(CpuBackwardIn, InputsThatDoNotBelongTogetherAreErrors) {
  const Tensor<TypeParam> q({1, 2, 3, 4}), rows({1, 2, 3, 1}), k({1, 1, 5, 4}), longer({1, 2, 4, 4});
  Tensor<TypeParam> grad({1, 1, 5, 4}), shorter({1, 1, 4, 4});
  EXPECT_THROW(CpuBackward<TypeParam>({}, {.threads = 0}), Error);
  CpuBackward<TypeParam> engine({});
  EXPECT_THROW(engine.begin({q, q, rows, q}, whole(4)), Error);
  EXPECT_THROW(engine.begin({q, longer, rows, q}, whole(3)), Error);
  EXPECT_THROW(engine.begin({q, q, q, q}, whole(3)), Error);
  engine.begin({q, q, rows, q}, whole(3));
  EXPECT_THROW(engine.accumulate({k, k, whole(4)}, {grad, grad}), Error);
  EXPECT_THROW(engine.accumulate({k, k, whole(5)}, {grad, shorter}), Error);
}

}  // namespace
}  // namespace ring_attention::test
