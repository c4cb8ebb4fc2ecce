// The state and the progress of the readable engine. (Its results: ../conformance; calls: ../cpu/engines_test.cpp.)

#include "ring_attention/attention/blockwise.hpp"

#include <gtest/gtest.h>

#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

template <class T>
class Blockwise : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Blockwise, Types);

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

}  // namespace
}  // namespace ring_attention::test
