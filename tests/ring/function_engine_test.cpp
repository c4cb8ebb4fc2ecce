// Functions as engines of a ring: their results for the pieces of the keys merge to attention over all keys.

#include "ring_attention/attention/function_engine.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/function_device.hpp"
#include "support/masks.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

/// The readable engine of one piece. out of a query without a key may be anything: here it is NaN.
template <class T>
AttentionFunction<T> blockwise(Index block) {
  return [block](const AttentionTask<T>& task) {
    BlockwiseEngine<T> engine(task.scoring, block);
    engine.begin(task.q, task.queries);
    engine.accumulate({task.k, task.v, task.keys});
    AttentionResult<T> result = engine.finish();
    const View<T> out = result.out, lse = result.lse;
    for (Index row = 0; row < lse.size(); ++row)
      if (lse.data()[row] == negative_infinity<T>)
        std::fill_n(out.data() + row * out.shape().dim, out.shape().dim, std::numeric_limits<T>::quiet_NaN());
    return result;
  };
}

template <class T>
testing::AssertionResult function_agrees(const Problem<T>& problem, int ranks) {
  return agrees(run(problem, {.rings = ranks}, FunctionDevice<T>(blockwise<T>(problem.what.block))), problem);
}

template <class T>
class FunctionEngines : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(FunctionEngines, Types);

TYPED_TEST(FunctionEngines, AgreeWithTheReferenceOnRandomProblems) {
  for_each_case(90, [](Dice& dice, Index index) {
    const int ranks = std::initializer_list<int>{1, 2, 3, 5, 7}.begin()[index % 5];
    const auto problem = make_problem<TypeParam>(random_case(dice, index / 5, ranks));
    EXPECT_TRUE(function_agrees(problem, ranks));
  });
}

TYPED_TEST(FunctionEngines, AgreeForEveryMaskWithSinks) {
  for (const PlacementKind kind : placement_kinds)
    for (const auto& [name, scoring] : every_scoring(13, 11, 4, 0.6)) {
      Case what{
          .batch = 2, .group = 2, .queries = 13, .keys = 11, .scoring = scoring, .block = 3, .kind = kind};
      what.scoring.sinks = {0.5, -1, 0, 2};
      EXPECT_TRUE(function_agrees(make_problem<TypeParam>(what), 3)) << name;
    }
}

// e^lse is far beyond the largest number.
TYPED_TEST(FunctionEngines, MergeScoresOfThousands) {
  const auto problem = make_problem<TypeParam>(
      {.queries = 12, .keys = 12, .scoring = {2000, Mask::causal()}, .spike_every = 4});
  for (const int ranks : {2, 3, 5}) EXPECT_TRUE(function_agrees(problem, ranks));
}

TYPED_TEST(FunctionEngines, AskTheFunctionForNoHiddenPiece) {
  int calls = 0;
  FunctionEngine<TypeParam> engine({1, Mask::causal()}, [&](const AttentionTask<TypeParam>& task) {
    ++calls;
    return AttentionResult<TypeParam>{Tensor<TypeParam>(task.q.shape()),
                                      Tensor<TypeParam>(task.q.shape().per_row())};
  });
  const Tensor<TypeParam> q({1, 1, 2, 1}), k({1, 1, 2, 1});
  engine.begin(q, {{4, 1, 2}});
  int beats = 0;
  for (const Index first : {6, 2, 8}) engine.accumulate({k, k, {{first, 1, 2}}}, [&] { ++beats; });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(beats, 3);
}

TYPED_TEST(FunctionEngines, RefuseAResultOfAnotherShape) {
  FunctionEngine<TypeParam> engine(
      {}, [](const AttentionTask<TypeParam>&) { return AttentionResult<TypeParam>{}; });
  const Tensor<TypeParam> q({1, 1, 2, 1});
  engine.begin(q, whole(2));
  EXPECT_THROW(engine.accumulate({q, q, whole(2)}), Error);
}

}  // namespace
}  // namespace ring_attention::test
