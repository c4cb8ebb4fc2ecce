// Functions as engines of a ring: their results for the pieces of the keys merge to attention over all keys.

#include "ring_attention/attention/function_engine.hpp"

#include <gtest/gtest.h>

#include <numbers>

#include "ring_attention/core/error.hpp"
#include "support/masks.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

// ---- what a function may do to a right result -------------------------------------------------------------

struct Nothing {
  static TokenRanges seen(const TokenRanges& ranges) { return ranges; }
  template <class T>
  static void change(AttentionResult<T>&) {}
};

/// Masks by the position of a token in its shard, not in the sequence.
struct PositionsInShards : Nothing {
  static TokenRanges seen(const TokenRanges& ranges) { return whole(count(ranges)); }
};

/// out of a query without a key: allowed.
struct NotANumberWithoutKeys : Nothing {
  template <class T>
  static void change(AttentionResult<T>& result) {
    const View<T> out = result.out, lse = result.lse;
    for (Index row = 0; row < lse.size(); ++row)
      if (lse.data()[row] == negative_infinity<T>)
        std::fill_n(out.data() + row * out.shape().dim, out.shape().dim, std::numeric_limits<T>::quiet_NaN());
  }
};

/// lse in units of log 2, as some kernels have it.
struct LogTwo : Nothing {
  template <class T>
  static void change(AttentionResult<T>& result) {
    for (T& lse : result.lse.view().elements()) lse /= std::numbers::ln2_v<T>;
  }
};

/// The weighted sum of the values, not divided by the sum of the weights.
struct NotNormalised : Nothing {
  template <class T>
  static void change(AttentionResult<T>& result) {
    const View<T> out = result.out, lse = result.lse;
    for (Index row = 0; row < lse.size(); ++row)
      for (Index d = 0; d < out.shape().dim; ++d)
        out.data()[row * out.shape().dim + d] *= std::exp(lse.data()[row]);
  }
};

/// The function is the readable engine of one piece.
template <class T, class Change = Nothing>
struct BlockwiseFunction : FunctionEngine<T> {
  BlockwiseFunction(const Scoring& scoring, Index block)
      : FunctionEngine<T>(scoring, [block](const AttentionTask<T>& task) {
          BlockwiseEngine<T> engine(task.scoring, block);
          engine.begin(task.q, Change::seen(task.queries));
          engine.accumulate({task.k, task.v, Change::seen(task.keys)});
          AttentionResult<T> result = engine.finish();
          Change::change(result);
          return result;
        }) {}
};

template <class T, class Function>
testing::AssertionResult agrees_with(const Problem<T>& problem, int ranks) {
  return agrees(run(problem, {.rings = ranks}, device_of<T, Function>(problem.what.block)), problem);
}

template <class T>
class FunctionEngines : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(FunctionEngines, Types);

TYPED_TEST(FunctionEngines, AgreeWithTheReferenceOnRandomProblems) {
  for_each_case(90, [](Dice& dice, Index index) {
    const int ranks = std::initializer_list<int>{1, 2, 3, 5, 7}.begin()[index % 5];
    const auto problem = make_problem<TypeParam>(random_case(dice, index / 5, ranks));
    EXPECT_TRUE((agrees_with<TypeParam, BlockwiseFunction<TypeParam>>(problem, ranks)));
    EXPECT_TRUE(
        (agrees_with<TypeParam, BlockwiseFunction<TypeParam, NotANumberWithoutKeys>>(problem, ranks)));
  });
}

TYPED_TEST(FunctionEngines, AgreeForEveryMaskWithSinks) {
  for (const PlacementKind kind : placement_kinds)
    for (const auto& [name, scoring] : every_scoring(13, 11, 4, 0.6)) {
      Case what{
          .batch = 2, .group = 2, .queries = 13, .keys = 11, .scoring = scoring, .block = 3, .kind = kind};
      what.scoring.sinks = {0.5, -1, 0, 2};
      EXPECT_TRUE((agrees_with<TypeParam, BlockwiseFunction<TypeParam>>(make_problem<TypeParam>(what), 3)))
          << name;
    }
}

// e^lse is far beyond the largest number.
TYPED_TEST(FunctionEngines, MergeScoresOfThousands) {
  const auto problem = make_problem<TypeParam>(
      {.queries = 12, .keys = 12, .scoring = {2000, Mask::causal()}, .spike_every = 4});
  for (const int ranks : {2, 3, 5})
    EXPECT_TRUE((agrees_with<TypeParam, BlockwiseFunction<TypeParam>>(problem, ranks)));
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

// ---- mutants -------------------------------------------------------------------------------------------

TYPED_TEST(FunctionEngines, WrongFunctionsAreNoticed) {
  const auto problem = make_problem<TypeParam>({.queries = 9, .keys = 9, .scoring = {0.7, Mask::causal()}});
  EXPECT_TRUE((agrees_with<TypeParam, BlockwiseFunction<TypeParam>>(problem, 3)));
  EXPECT_FALSE((agrees_with<TypeParam, BlockwiseFunction<TypeParam, PositionsInShards>>(problem, 3)));
  EXPECT_FALSE((agrees_with<TypeParam, BlockwiseFunction<TypeParam, LogTwo>>(problem, 3)));
  EXPECT_FALSE((agrees_with<TypeParam, BlockwiseFunction<TypeParam, NotNormalised>>(problem, 3)));
}

}  // namespace
}  // namespace ring_attention::test
