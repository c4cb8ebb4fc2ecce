// The fast engine with every instruction set, and how it is called. (Its results: ../conformance.)

#include "ring_attention/cpu/engine.hpp"

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/core/allocation.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

template <class T>
AttentionResult<T> forward(const Problem<T>& problem, const CpuOptions& options) {
  CpuEngine<T> engine(problem.what.scoring, options);
  engine.begin(problem.q, whole(problem.what.queries));
  engine.accumulate({problem.k, problem.v, whole(problem.what.keys)});
  return engine.finish();
}

template <class T>
class CpuEngineIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuEngineIn, Types);

/// Masks without a left end.
std::vector<Scoring> scorings_to_the_right(Index offset) {
  return {
      {0.3}, {0.3, Mask::causal(offset)}, {0.3, {}, alibi_slopes(4), {}, {.probability = 0.25, .seed = 3}}};
}

// Few queries have a kernel of their own. A mask without a left end: the blocks of keys begin with key 0 in both.
TYPED_TEST(CpuEngineIn, FewQueriesHaveTheBitsThatTheyHaveAmongMany) {
  for_each_isa([](Isa isa) {
    const Index one = kernels<TypeParam>(isa).forward.few[0].lanes,
                two = kernels<TypeParam>(isa).forward.few[1].lanes;
    for (const Index dim : {1, 20, 64, 129})
      for (const Index keys : {3, 95, 96, 97, 230}) {
        Case what{.kv_heads = 2, .group = 2, .queries = two + 1, .keys = keys, .dim = dim, .spike_every = 8};
        for (const Scoring& scoring : scorings_to_the_right(keys - what.queries)) {
          what.scoring = scoring;
          const auto many = make_problem<TypeParam>(what);
          const AttentionResult<TypeParam> all = forward(many, {.isa = isa});
          for (const Index queries : {Index{1}, one, one + 1, two}) {
            const TokenRanges rows = whole(queries);
            const Tensor<TypeParam> q = rows_of(many.q, rows);
            CpuEngine<TypeParam> engine(scoring, {.isa = isa});
            engine.begin(q, rows);
            engine.accumulate({many.k, many.v, whole(keys)});
            EXPECT_TRUE(same_bits(engine.finish(), {rows_of(all.out, rows), rows_of(all.lse, rows)}))
                << to_string(what) << ", " << queries << " queries";
          }
        }
      }
  });
}

TYPED_TEST(CpuEngineIn, AllLogitsVeryNegativeAreFine) {
  auto problem = make_problem<TypeParam>({.kv_heads = 1, .queries = 70, .keys = 70, .dim = 4});
  problem.q.fill(100);
  problem.k.fill(-25.5F);  // every score is -10200
  problem = make_problem(problem.what, std::move(problem.q), std::move(problem.k), std::move(problem.v));
  EXPECT_NEAR(problem.want.max_abs_score, 10200, 1);
  for_each_isa([&](Isa isa) { EXPECT_TRUE(agrees(forward(problem, {.isa = isa}), problem)); });
}

TYPED_TEST(CpuEngineIn, WithoutKeysNothingWasSeen) {
  const auto problem = make_problem<TypeParam>({.queries = 3, .keys = 3});
  CpuEngine<TypeParam> engine({});
  engine.begin(problem.q, whole(3));
  const auto got = engine.finish();
  for (const TypeParam x : got.out.view().elements()) EXPECT_EQ(x, 0);
  for (const TypeParam x : got.lse.view().elements()) EXPECT_EQ(x, negative_infinity<TypeParam>);
}

TYPED_TEST(CpuEngineIn, NotANumberStays) {
  const auto problem = make_problem<TypeParam>({.kv_heads = 1, .queries = 80, .keys = 90, .dim = 8});
  const auto nan_of = [](const char* bits) {
    return sizeof(TypeParam) == sizeof(float) ? static_cast<TypeParam>(std::nanf(bits))
                                              : static_cast<TypeParam>(std::nan(bits));
  };
  for (const TypeParam bad : {nan_of("1"), nan_of("257"), -nan_of("65537")}) {
    Tensor<TypeParam> k = problem.k.clone(), v = problem.v.clone();
    k.view()(0, 0, 30, 3) = bad;
    v.view()(0, 0, 30, 5) = bad;
    for_each_isa([&](Isa isa) {
      for (const auto& [keys, values] :
           {std::pair<const Tensor<TypeParam>&, const Tensor<TypeParam>&>{k, problem.v}, {problem.k, v}}) {
        CpuEngine<TypeParam> engine({}, {.isa = isa});
        engine.begin(problem.q, whole(80));
        engine.accumulate({keys, values, whole(90)});
        const auto got = engine.finish();
        for (Index row = 0; row < 80; ++row) EXPECT_TRUE(std::isnan(got.out.view()(0, 0, row, 5)));
      }
    });
  }
}

TYPED_TEST(CpuEngineIn, TheStateIsThatOfTheReadableEngine) {
  const auto problem = make_problem<TypeParam>({.queries = 90, .keys = 70, .dim = 8});
  CpuEngine<TypeParam> fast(problem.what.scoring);
  BlockwiseEngine<TypeParam> readable(problem.what.scoring);
  fast.begin(problem.q, whole(90));
  readable.begin(problem.q, whole(90));
  for (const TokenRanges& piece : {TokenRanges{{0, 1, 30}}, TokenRanges{{30, 1, 40}}}) {
    const Tensor<TypeParam> k = rows_of(problem.k, piece), v = rows_of(problem.v, piece);
    fast.accumulate({k, v, piece});
    readable.accumulate({k, v, piece});
    const Partial<TypeParam> got = fast.to_partial();
    const Partial<TypeParam>& want = readable.to_partial();
    for (Index i = 0; i < got.m.size(); ++i) {
      EXPECT_NEAR(got.m.data()[i], want.m.data()[i], 1e-5);
      EXPECT_NEAR(got.l.data()[i], want.l.data()[i], 1e-4);
    }
    for (Index i = 0; i < got.o.size(); ++i) EXPECT_NEAR(got.o.data()[i], want.o.data()[i], 1e-4);
  }
}

TYPED_TEST(CpuEngineIn, AnEngineMayBeginAgain) {
  const auto first = make_problem<TypeParam>({.queries = 90, .keys = 90});
  const auto second = make_problem<TypeParam>({.queries = 4, .keys = 6, .dim = 9, .seed = 2});
  CpuEngine<TypeParam> engine({});
  for (const auto* problem : {&first, &second, &first}) {
    engine.begin(problem->q, whole(problem->what.queries));
    engine.accumulate({problem->k, problem->v, whole(problem->what.keys)});
    EXPECT_TRUE(agrees(engine.finish(), *problem));
  }
}

TYPED_TEST(CpuEngineIn, ReportsProgressAfterEveryTileAndAllocatesNothing) {
  const auto problem = make_problem<TypeParam>({.batch = 2, .queries = 100, .keys = 50});
  CpuEngine<TypeParam> engine({}, {.isa = available_isas().front()});
  engine.begin(problem.q, whole(100));
  const Index allocations = allocation::count();
  int reports = 0;
  engine.accumulate({problem.k, problem.v, whole(50)}, [&] { ++reports; });
  EXPECT_GE(reports, 2 * 2 * 2);
  EXPECT_EQ(allocation::count(), allocations);
}

TYPED_TEST(CpuEngineIn, InputsThatDoNotBelongTogetherAreErrors) {
  EXPECT_THROW(CpuEngine<TypeParam>({}, {.threads = 0}), Error);
  const Tensor<TypeParam> q({1, 2, 3, 4}), k({1, 1, 5, 4}), longer({1, 1, 6, 4});
  CpuEngine<TypeParam> engine({});
  EXPECT_THROW(engine.begin(q, whole(4)), Error);
  engine.begin(q, whole(3));
  EXPECT_THROW(engine.accumulate({k, longer, whole(5)}), Error);
  EXPECT_THROW(engine.accumulate({k, k, whole(4)}), Error);
  EXPECT_THROW((void)isa_named("mmx"), Error);
  EXPECT_EQ(isa_named(name_of(best_isa())), best_isa());
}

}  // namespace
}  // namespace ring_attention::test
