// The fast engines, forward and backward, at the ends of their tiles; and how a backward is called.

#include "ring_attention/cpu/backward.hpp"

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"
#include "ring_attention/core/allocation.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

template <class T>
void expect_agreement(const Case& what) {
  const auto problem = make_gradient_problem<T>(what);
  for_each_isa([&](Isa isa) {
    EXPECT_TRUE(agrees(run(problem, {}, CpuDevice<T>({.isa = isa})), problem)) << to_string(what);
  });
}

template <class T>
class CpuBackwardIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuBackwardIn, Types);

TYPED_TEST(CpuBackwardIn, TakesAnyHeadDim) {
  for (Index dim = 1; dim <= 256; dim += dim < 70 ? 1 : 31)
    expect_agreement<TypeParam>(
        {.group = 2, .queries = 19, .keys = 23, .dim = dim, .scoring = {0.2, Mask::causal(4)}});
}

TYPED_TEST(CpuBackwardIn, TakesAnyLengths) {
  for (const Index queries : {1, 7, 8, 9, 24, 63, 64, 65, 130})
    for (const Index keys : {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 131}) {
      const Mask mask = queries % 2 == 0 ? Mask{} : Mask::causal(keys - queries);
      expect_agreement<TypeParam>({.queries = queries, .keys = keys, .dim = 20, .scoring = {0.3, mask}});
    }
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
