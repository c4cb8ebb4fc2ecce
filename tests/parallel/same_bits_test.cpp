// A rank of Ulysses computes what a ring over its heads by themselves does, bit for bit: slopes, bias, sinks and dropout are
// those of its heads in the layer, and the dK,dV of a head that several ranks have are added in the order of the ranks.

#include <gtest/gtest.h>

#include "support/masks.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

/// Rows of x: heads [begin, end) of it.
template <class T>
Tensor<T> some_heads(const Tensor<T>& x, const Interval& heads) {
  const Shape& all = x.shape();
  Tensor<T> some({all.batch, heads.end - heads.begin, all.seq, all.dim});
  const View<const T> from = x;
  for (Index batch = 0; batch < all.batch; ++batch)
    std::copy_n(from.head(batch, heads.begin), some.size() / all.batch, some.view().head(batch, 0));
  return some;
}

/// Adds `part` to the heads of `all` from the first on. \param first  copies instead
template <class T>
void add_heads(Tensor<T>& all, const Tensor<T>& part, const Interval& heads, bool first) {
  const View<const T> from = part;
  const Index elements = part.size() / part.shape().batch;
  for (Index batch = 0; batch < part.shape().batch; ++batch) {
    T* to = all.view().head(batch, heads.begin);
    const T* term = from.head(batch, 0);
    for (Index i = 0; i < elements; ++i) to[i] = first ? term[i] : to[i] + term[i];
  }
}

/// What must come out: a ring over the heads of each rank of Ulysses by themselves; dK and dV of a head that several ranks
/// have are added in the order of the ranks. Without messages between the heads.
template <class T>
Whole<T> heads_by_themselves(const GradientProblem<T>& problem, const Team& team, const Device<T>& device) {
  const Case& what = problem.what();
  const Problem<T>& p = problem.forward;
  const HeadShare share(what.q().heads, what.kv_heads, team.ulysses);
  Whole<T> all = zeros<T>(what);
  for (std::size_t u = 0; u < share.query.size(); ++u) {
    const Interval query = share.query[u], kv = share.kv[u];
    const bool shared_bias = what.bias_heads == 1;
    Case part = what;
    part.kv_heads = kv.end - kv.begin;
    part.group = (query.end - query.begin) / part.kv_heads;
    part.scoring = what.scoring.of_heads(query);
    if (what.bias_batch > 0 && !shared_bias) part.bias_heads = query.end - query.begin;
    const Interval bias_heads = shared_bias ? Interval{0, 1} : query;
    const GradientProblem<T> of_heads{{part,
                                       some_heads(p.q, query),
                                       some_heads(p.k, kv),
                                       some_heads(p.v, kv),
                                       {},
                                       p.bias.size() > 0 ? some_heads(p.bias, bias_heads) : Tensor<T>()},
                                      some_heads(problem.grad_out, query),
                                      {}};
    const Whole<T> got = run(of_heads, {.rings = team.rings}, device);
    const bool first = u == 0 || share.kv[u - 1].end <= kv.begin;
    add_heads(all.attended.out, got.attended.out, query, true);
    add_heads(all.attended.lse, got.attended.lse, query, true);
    add_heads(all.gradients.q, got.gradients.q, query, true);
    add_heads(all.gradients.k, got.gradients.k, kv, first);
    add_heads(all.gradients.v, got.gradients.v, kv, first);
    if (p.bias.size() > 0)
      add_heads(all.gradients.bias, got.gradients.bias, bias_heads, u == 0 || !shared_bias);
    std::ranges::copy(got.gradients.sinks,
                      all.gradients.sinks.begin() + (got.gradients.sinks.empty() ? 0 : query.begin));
  }
  return all;
}

template <class T>
class HeadsByThemselves : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(HeadsByThemselves, Types);

// Four ranks share one KV head or two: replicas. The fast engines and the readable ones are in turn.
TYPED_TEST(HeadsByThemselves, HaveTheSameBitsAmongTheOthers) {
  Index turn = 0;
  for (const Team& team : {Team{2, 2}, Team{2, 3}, Team{4, 1}})
    for (const Index kv_heads : {4, 2, 1})
      for (const Index bias_heads : {1, 4}) {
        Case what{.batch = 2,
                  .kv_heads = kv_heads,
                  .group = 4 / kv_heads,
                  .queries = 13,
                  .keys = 13,
                  .dim = 3,
                  .scoring = every_scoring(13, 13, 4, 0.5).back().scoring,
                  .bias_batch = 1,
                  .bias_heads = bias_heads,
                  .kind = placement_kinds.begin()[turn % 3]};
        what.scoring.sinks = {-0.5, -0.2, 0.1, 0.4};
        what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 1, .layer = 2};
        SCOPED_TRACE(to_string(team) + ": " + to_string(what));
        const auto problem = make_gradient_problem<TypeParam>(what);
        const ReadableDevice<TypeParam> device({}, turn++ % 2 * 5);
        const TeamRun<TypeParam> got = run(problem, team, device);
        const Whole<TypeParam> want = heads_by_themselves(problem, team, device);
        EXPECT_TRUE(same_bits<TypeParam>(got, want));
        EXPECT_TRUE(bitwise_equal(got.gradients.bias, want.gradients.bias)) << "dbias";
      }
}

}  // namespace
}  // namespace ring_attention::test
