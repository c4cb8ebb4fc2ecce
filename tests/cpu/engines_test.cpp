// How an engine is called: the readable ones and the fast ones, float and double.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "ring_attention/core/allocation.hpp"
#include "ring_attention/cpu/attention_backward.hpp"
#include "support/engines.hpp"
#include "support/gradients.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

template <class E>
class ForwardEngines : public testing::Test {};
using AllForwardEngines =
    testing::Types<BlockwiseEngine<float>, BlockwiseEngine<double>, CpuEngine<float>, CpuEngine<double>>;
TYPED_TEST_SUITE(ForwardEngines, AllForwardEngines);

TYPED_TEST(ForwardEngines, SeeNothingWithoutKeys) {
  using T = typename TypeParam::value_type;
  const auto problem = make_problem<T>({.queries = 3, .keys = 3});
  auto engine = make_engine<TypeParam>({}, 64);
  engine.begin(problem.q, whole(3));
  const AttentionResult<T> got = engine.finish();
  for (const T x : got.out.view().elements()) EXPECT_EQ(x, 0);
  for (const T x : got.lse.view().elements()) EXPECT_EQ(x, negative_infinity<T>);
}

TYPED_TEST(ForwardEngines, MayBeginAgain) {
  using T = typename TypeParam::value_type;
  const auto first = make_problem<T>({.queries = 90, .keys = 90});
  const auto second = make_problem<T>({.queries = 4, .keys = 6, .dim = 9, .seed = 2});
  auto engine = make_engine<TypeParam>({}, 4);
  for (const auto* problem : {&first, &second, &first}) {
    engine.begin(problem->q, whole(problem->what.queries));
    engine.accumulate({problem->k, problem->v, whole(problem->what.keys)});
    EXPECT_TRUE(agrees(engine.finish(), *problem));
  }
}

TYPED_TEST(ForwardEngines, RefuseInputsThatDoNotBelongTogether) {
  using T = typename TypeParam::value_type;
  const Tensor<T> q({1, 2, 3, 4}), k({1, 1, 5, 4}), longer({1, 1, 6, 4}), other_dim({1, 1, 5, 3});
  auto engine = make_engine<TypeParam>({}, 2);
  EXPECT_THROW(engine.begin(q, whole(4)), Error);
  engine.begin(q, whole(3));
  EXPECT_THROW(engine.accumulate({k, longer, whole(5)}), Error);
  EXPECT_THROW(engine.accumulate({k, k, whole(4)}), Error);
  EXPECT_THROW(engine.accumulate({k, other_dim, whole(5)}), Error);
  EXPECT_THROW(engine.accumulate({other_dim, other_dim, whole(5)}), Error);
}

TEST(Engines, RefuseOptionsThatCannotBe) {
  const Tensor<float> q({1, 1, 3, 4}), rows({1, 1, 3, 1});
  const CpuOptions no_thread{.threads = 0};
  EXPECT_THROW((void)blockwise_forward<float>(q, q, q, {}, 0), Error);
  EXPECT_THROW((void)blockwise_backward<float>({q, q, rows, q}, q, q, {}, 0), Error);
  EXPECT_THROW((void)attention_forward<float>(q, q, q, {}, no_thread), Error);
  EXPECT_THROW((void)attention_backward<float>({q, q, rows, q}, q, q, {}, no_thread), Error);
  EXPECT_THROW((void)isa_named("mmx"), Error);
  EXPECT_EQ(isa_named(name_of(best_isa())), best_isa());
}

// ---- backward ------------------------------------------------------------------------------------------

template <class E>
class BackwardEngines : public testing::Test {};
using AllBackwardEngines = testing::Types<BlockwiseBackward<float>, BlockwiseBackward<double>,
                                          CpuBackward<float>, CpuBackward<double>>;
TYPED_TEST_SUITE(BackwardEngines, AllBackwardEngines);

// An engine that is used again, too. It adds to what is there.
TYPED_TEST(BackwardEngines, AddAndMayBeginAgain) {
  using T = typename TypeParam::value_type;
  const auto first = make_gradient_problem<T>({.queries = 60, .keys = 60});
  const auto second = make_gradient_problem<T>({.queries = 4, .keys = 6, .seed = 2});
  auto engine = make_engine<TypeParam>({}, 4);
  for (const auto* problem : {&first, &second, &first}) {
    const Problem<T>& p = problem->forward;
    const auto attended = blockwise_forward<T>(p.q, p.k, p.v, {});
    Gradients<T> got{{}, Tensor<T>(p.what.kv(), 1), Tensor<T>(p.what.kv(), 1)};
    engine.begin({p.q, attended.out, attended.lse, problem->grad_out}, whole(p.what.queries));
    const Index allocations = allocation::count();
    int reports = 0;
    engine.accumulate({p.k, p.v, whole(p.what.keys)}, {got.k, got.v}, [&] { ++reports; });
    EXPECT_GE(reports, 2);
    EXPECT_EQ(allocation::count(), allocations);
    for (Tensor<T>* array : {&got.k, &got.v})
      for (T& x : array->view().elements()) x -= 1;
    got.q = engine.finish();
    EXPECT_TRUE(agrees(got, *problem));
  }
}

TYPED_TEST(BackwardEngines, RefuseInputsThatDoNotBelongTogether) {
  using T = typename TypeParam::value_type;
  const Tensor<T> q({1, 2, 3, 4}), rows({1, 2, 3, 1}), k({1, 1, 5, 4}), longer({1, 2, 4, 4});
  Tensor<T> grad({1, 1, 5, 4}), shorter({1, 1, 4, 4});
  auto engine = make_engine<TypeParam>({}, 2);
  EXPECT_THROW(engine.begin({q, q, rows, q}, whole(4)), Error);
  EXPECT_THROW(engine.begin({q, longer, rows, q}, whole(3)), Error);
  EXPECT_THROW(engine.begin({q, q, q, q}, whole(3)), Error);
  EXPECT_THROW(engine.begin({q, q, rows, longer}, whole(3)), Error);
  engine.begin({q, q, rows, q}, whole(3));
  EXPECT_THROW(engine.accumulate({k, k, whole(4)}, {grad, grad}), Error);
  EXPECT_THROW(engine.accumulate({k, k, whole(5)}, {grad, shorter}), Error);
  EXPECT_THROW(engine.accumulate({k, k, whole(5)}, {shorter, grad}), Error);
}

template <class T>
class FastBackward : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(FastBackward, Reals);

// The tiles of queries and the parts of the keys are many, uneven and partly hidden. The calling thread waits at times:
// then the threads end their tasks in another order in each run.
TYPED_TEST(FastBackward, HasTheSameBitsForAnyNumberOfThreads) {
  using T = TypeParam;
  for (const Mask& mask : {Mask{}, Mask::causal(200)}) {
    const auto problem = make_gradient_problem<T>(
        {.kv_heads = 1, .group = 2, .queries = 400, .keys = 600, .dim = 8, .scoring = {.mask = mask}});
    const Problem<T>& p = problem.forward;
    const AttentionResult<T> result = single_device(problem).attended;
    const auto gradients = [&](int threads) {
      Gradients<T> got{{}, Tensor<T>(p.what.kv()), Tensor<T>(p.what.kv())};
      CpuBackward<T> engine(p.what.scoring, {.threads = threads});
      engine.begin({p.q, result.out, result.lse, problem.grad_out}, whole(p.what.queries));
      int tasks = 0;
      engine.accumulate({p.k, p.v, whole(p.what.keys)}, {got.k, got.v}, [&] {
        if (threads > 1 && ++tasks % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
      got.q = engine.finish();
      return got;
    };
    const Gradients<T> alone = gradients(1);
    for (const int threads : {2, 3, 5}) EXPECT_TRUE(same_bits<T>(gradients(threads), alone)) << threads;
  }
}

TEST(BackwardReference, RefusesAGradientOfAnotherShape) {
  const Tensor<double> x({1, 1, 2, 1});
  EXPECT_THROW((void)reference_backward(x, x, x, Tensor<double>({1, 1, 3, 1}), {}), Error);
}

}  // namespace
}  // namespace ring_attention::test
