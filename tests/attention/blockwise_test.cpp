// The readable engine, and how it is called. (Its results: ../conformance.)

#include "ring_attention/attention/blockwise.hpp"

#include <gtest/gtest.h>

#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

template <class T>
class Blockwise : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Blockwise, Types);

TYPED_TEST(Blockwise, WithoutKeysNothingWasSeen) {
  const auto problem = make_problem<TypeParam>({.queries = 3, .keys = 3});
  BlockwiseEngine<TypeParam> engine({});
  engine.begin(problem.q, whole(3));
  const auto got = engine.finish();
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
