// The readable engine against the reference.

#include "ring_attention/attention/blockwise.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

template <class T>
AttentionResult<T> forward(const Problem<T>& problem) {
  return blockwise_forward<T>(problem.q, problem.k, problem.v, problem.what.scoring, problem.what.block);
}

template <class T>
class Blockwise : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Blockwise, Types);

TYPED_TEST(Blockwise, AgreesWithTheReferenceOnRandomProblems) {
  for_each_case(200, [](Dice& dice, Index index) {
    const auto problem = make_problem<TypeParam>(random_case(dice, index, 3));
    EXPECT_TRUE(agrees(forward(problem), problem));
  });
}

TYPED_TEST(Blockwise, AnyTileSizeAgrees) {
  for (const Index block : {1, 2, 3, 7, 12, 13, 14, 1000}) {
    const auto problem = make_problem<TypeParam>(
        {.group = 2, .queries = 13, .keys = 13, .dim = 3, .scoring = {0.7, Mask::causal()}, .block = block});
    EXPECT_TRUE(agrees(forward(problem), problem)) << "block " << block;
  }
}

TYPED_TEST(Blockwise, LogitsInTheThousandsAreFine) {
  auto problem =
      make_problem<TypeParam>({.queries = 40, .keys = 40, .dim = 16, .block = 5, .spike_every = 3});
  EXPECT_GT(problem.want.max_abs_score, 300);
  EXPECT_TRUE(agrees(forward(problem), problem));
}

TYPED_TEST(Blockwise, FullyMaskedRowsAreZeroAndMinusInfinity) {
  const Case what{.queries = 9, .keys = 4, .scoring = {1, Mask::causal(4 - 9)}, .block = 2};
  const auto problem = make_problem<TypeParam>(what);
  const auto got = forward(problem);
  EXPECT_TRUE(agrees(got, problem));
  for (Index row = 0; row < 5; ++row) {
    EXPECT_EQ(got.lse.view()(0, 1, row), negative_infinity<TypeParam>);
    for (const TypeParam x : got.out.view().row(0, 1, row)) EXPECT_EQ(x, 0);
  }
  EXPECT_TRUE(std::isfinite(got.lse.view()(0, 1, 5)));
}

/// Accumulates the keys in pieces, in the order given, and finishes.
template <class T>
AttentionResult<T> in_pieces(const Problem<T>& problem, const std::vector<TokenRanges>& pieces) {
  BlockwiseEngine<T> engine(problem.what.scoring, problem.what.block);
  engine.begin(problem.q, whole(problem.what.queries));
  for (const TokenRanges& piece : pieces) {
    const Tensor<T> k = rows_of(problem.k, piece);
    const Tensor<T> v = rows_of(problem.v, piece);
    engine.accumulate({k, v, piece});
  }
  return engine.finish();
}

TYPED_TEST(Blockwise, KeysMayComeInAnyOrderAndAnyRanges) {
  const auto problem = make_problem<TypeParam>({.batch = 2,
                                                .group = 2,
                                                .queries = 11,
                                                .keys = 17,
                                                .dim = 5,
                                                .scoring = {0.5, Mask::causal(17 - 11)},
                                                .block = 3});
  EXPECT_TRUE(agrees(in_pieces(problem, {{{0, 1, 17}}}), problem));
  EXPECT_TRUE(agrees(in_pieces(problem, {{{10, 1, 7}}, {{0, 1, 10}}}), problem));
  EXPECT_TRUE(agrees(in_pieces(problem, {{{1, 2, 8}}, {}, {{0, 2, 9}}}), problem)) << "striped";
  EXPECT_TRUE(agrees(in_pieces(problem, {{{4, 1, 4}, {8, 1, 5}}, {{0, 1, 4}, {13, 1, 4}}}), problem))
      << "zigzag";
}

TYPED_TEST(Blockwise, QueriesMayHaveAnyPositions) {
  const auto problem = make_problem<TypeParam>(
      {.queries = 12, .keys = 12, .dim = 5, .scoring = {0.5, Mask::causal()}, .block = 3});
  for (const TokenRanges& rows :
       {TokenRanges{{0, 3, 4}}, TokenRanges{{2, 3, 3}}, TokenRanges{{0, 1, 2}, {10, 1, 2}}, TokenRanges{}}) {
    const Tensor<TypeParam> q = rows_of(problem.q, rows);
    BlockwiseEngine<TypeParam> engine(problem.what.scoring, problem.what.block);
    engine.begin(q, rows);
    engine.accumulate({problem.k, problem.v, whole(12)});
    EXPECT_TRUE(agrees(engine.finish(), problem, rows));
  }
}

TYPED_TEST(Blockwise, WithoutKeysNothingWasSeen) {
  const auto problem = make_problem<TypeParam>({.queries = 3, .keys = 3});
  const auto got = in_pieces(problem, {});
  EXPECT_TRUE(std::ranges::all_of(got.out.view().elements(), [](TypeParam x) { return x == 0; }));
  EXPECT_TRUE(std::ranges::all_of(got.lse.view().elements(),
                                  [](TypeParam x) { return x == negative_infinity<TypeParam>; }));
}

TYPED_TEST(Blockwise, AnEngineMayBeginAgain) {
  const auto first = make_problem<TypeParam>({.queries = 9, .keys = 9});
  const auto second = make_problem<TypeParam>({.queries = 4, .keys = 6, .seed = 2});
  BlockwiseEngine<TypeParam> engine({}, 4);
  for (const auto* problem : {&first, &second, &first}) {
    engine.begin(problem->q, whole(problem->what.queries));
    engine.accumulate({problem->k, problem->v, whole(problem->what.keys)});
    EXPECT_TRUE(agrees(engine.finish(), *problem));
  }
}

TYPED_TEST(Blockwise, ItsStateIsThePartialThatItFinishes) {
  const auto problem = make_problem<TypeParam>({.queries = 9, .keys = 9, .block = 4});
  BlockwiseEngine<TypeParam> engine({}, 4);
  engine.begin(problem.q, whole(9));
  engine.accumulate({problem.k, problem.v, whole(9)});
  const Partial<TypeParam>& state = engine.to_partial();
  const auto by_hand = finish(Partial<TypeParam>{state.o.clone(), state.m.clone(), state.l.clone()});
  EXPECT_TRUE(agrees(by_hand, problem));
  EXPECT_TRUE(same_bits(by_hand, engine.finish()));
}

TYPED_TEST(Blockwise, TheSameCallGivesTheSameBits) {
  const auto problem =
      make_problem<TypeParam>({.queries = 30, .keys = 30, .dim = 16, .block = 7, .spike_every = 5});
  EXPECT_TRUE(same_bits(forward(problem), forward(problem)));
}

TYPED_TEST(Blockwise, ReportsProgressAfterEveryTile) {
  const auto problem = make_problem<TypeParam>(
      {.batch = 2, .queries = 5, .keys = 8, .scoring = {1, Mask::causal(3)}, .block = 4});
  BlockwiseEngine<TypeParam> engine(problem.what.scoring, problem.what.block);
  engine.begin(problem.q, whole(5));
  Index tiles = 0;
  engine.accumulate({problem.k, problem.v, whole(8)}, [&] { ++tiles; });
  EXPECT_EQ(tiles, 2 * 2 * (2 * 2));  // batch, heads, tiles: also those that the mask hides
}

TYPED_TEST(Blockwise, InputsThatDoNotBelongTogetherAreErrors) {
  const Tensor<TypeParam> q({1, 2, 3, 4}), k({1, 1, 5, 4}), other_dim({1, 1, 5, 3});
  EXPECT_THROW(BlockwiseEngine<TypeParam>({}, 0), Error);
  BlockwiseEngine<TypeParam> engine({}, 2);
  EXPECT_THROW(engine.begin(q, whole(4)), Error);
  engine.begin(q, whole(3));
  EXPECT_THROW(engine.accumulate({k, k, whole(4)}), Error);
  EXPECT_THROW(engine.accumulate({k, other_dim, whole(5)}), Error);
  EXPECT_THROW(engine.accumulate({other_dim, other_dim, whole(5)}), Error);
}

}  // namespace
}  // namespace ring_attention::test
