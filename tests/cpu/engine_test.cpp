// The fast engines with every instruction set: at the ends of their tiles, few queries, states. (Their results otherwise:
// ../conformance.)

#include "ring_attention/cpu/engine.hpp"

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/attention/exact/sum.hpp"
#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/parallel/same_bits_device.hpp"
#include "support/masks.hpp"
#include "support/run.hpp"

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

/// Both passes agree with the reference.
template <class T>
void expect_agreement(const Case& what) {
  const auto problem = make_gradient_problem<T>(what);
  for_each_isa([&](Isa isa) {
    EXPECT_TRUE(agrees(run(problem, {}, CpuDevice<T>({.isa = isa})), problem)) << to_string(what);
  });
}

TYPED_TEST(CpuEngineIn, TakesAnyHeadDim) {
  for (Index dim = 1; dim <= 256; dim += dim < 70 ? 1 : 31)
    expect_agreement<TypeParam>(
        {.group = 2, .queries = 19, .keys = 23, .dim = dim, .scoring = {0.2, Mask::causal(4)}});
}

TYPED_TEST(CpuEngineIn, TakesAnyLengths) {
  for (const Index queries : {1, 7, 8, 9, 24, 63, 64, 65, 130})
    for (const Index keys : {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 131}) {
      const Mask mask = queries % 2 == 0 ? Mask{} : Mask::causal(keys - queries);
      expect_agreement<TypeParam>({.queries = queries, .keys = keys, .dim = 20, .scoring = {0.3, mask}});
    }
}

// A softcap, a bias, dropout, and masks of one to four intervals. A tile has several panels of queries.
TYPED_TEST(CpuEngineIn, TakesEveryMaskAndTermInSeveralPanels) {
  std::vector<NamedScoring> all = every_scoring(130, 130, 4, 0.6);
  all.push_back({"the first panel sees all keys", {0.6, {.left = 70}}});
  for (const NamedScoring& named : all) {
    SCOPED_TRACE(named.name);
    Case what{.group = 2, .queries = 130, .keys = 130, .dim = 5, .scoring = named.scoring};
    what.scoring.softcap = 2;
    what.scoring.dropout = {.probability = 0.25, .seed = 3};
    what.bias_batch = what.bias_heads = 1;
    expect_agreement<TypeParam>(what);
  }
}

// With one key of 1, lse is the score: the kernels' tanh, near 0, where its two formulas meet, and where it is 1.
TYPED_TEST(CpuEngineIn, ASoftcapIsATanh) {
  using T = TypeParam;
  Problem<T> problem = make_problem<T>(
      {.kv_heads = 1, .queries = 4000, .keys = 1, .dim = 1, .scoring = {.scale = 1, .softcap = 2}});
  problem.k.fill(1);
  for (Index i = 0; i < 4000; ++i)
    problem.q.data()[i] =
        static_cast<T>((i % 2 == 0 ? 2 : -2) * std::exp(static_cast<double>(i) / 4000 * 12 - 8));
  for_each_isa([&](Isa isa) {
    const auto result = forward(problem, {.isa = isa});
    for (Index i = 0; i < 4000; ++i) {
      const double want = 2 * std::tanh(static_cast<double>(problem.q.data()[i]) / 2);
      EXPECT_LE(std::abs(result.lse.data()[i] - want), 6 * std::numeric_limits<T>::epsilon() * std::abs(want))
          << problem.q.data()[i];
    }
    problem.q.data()[7] = std::numeric_limits<T>::quiet_NaN();
    EXPECT_TRUE(std::isnan(forward(problem, {.isa = isa}).lse.data()[7]));
    problem.q.data()[7] = std::numeric_limits<T>::infinity();
    EXPECT_EQ(forward(problem, {.isa = isa}).lse.data()[7], T{2});
    problem.q.data()[7] = 1;
  });
}

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
  // The general bound says nothing here: scores of this size could be off by 1e-3. These are all equal, and so exact.
  for_each_isa([&](Isa isa) {
    const AttentionResult<TypeParam> got = forward(problem, {.isa = isa});
    EXPECT_TRUE(compare(got.out, problem.want.out, {.absolute = 1e-6}).ok);
    EXPECT_TRUE(compare(got.lse, problem.want.lse, {.relative = 1e-6}).ok);
  });
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

// A tile of two keys is in the first interval of one query and in the second of the other: two terms of dQ.
TEST(SameBits, TakeMoreTermsThanANarrowSumHolds) {
  constexpr Index keys = 1030;
  static_assert(keys / 2 <= ExactFormat::most_terms && keys - 4 > ExactFormat::most_terms);
  Case what{.kv_heads = 1, .queries = 2, .keys = keys, .dim = 1, .scoring = {0.5}};
  what.scoring.mask.sets = std::make_shared<const MaskRows>(
      std::vector<Interval>{{0, 1}, {2, keys}, {0, keys - 2}, {keys - 1, keys}}, 2);
  const auto problem = make_gradient_problem<float>(what);
  EXPECT_TRUE(agrees(run(problem, {.tile = 2}, SameBitsDevice({.same_bits = 2})), problem));
}

}  // namespace
}  // namespace ring_attention::test
