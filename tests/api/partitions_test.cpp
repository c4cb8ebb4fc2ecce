// The one call in every partition: out, lse and dQ have the bits of the ring (of one device, for Ulysses), dK and dV too
// where no ranks share a K,V head. What each rank holds, by formula; what is refused.

#include <gtest/gtest.h>

#include "api/user.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/parallel/context_memory.hpp"
#include "support/agreed_error.hpp"
#include "support/masks.hpp"

namespace ring_attention::test {
namespace {

int ranks_of_world() { return place_in(MPI_COMM_WORLD).size; }
int world_rank() { return place_in(MPI_COMM_WORLD).rank; }

/// dK and dV where ranks share a K,V head: those of the threads (../conformance).
template <class T>
void expect_sum_of_replicas(const User<T>& user, const Gradients<T>& got) {
  const auto threads = run(user.problem, {user.grid.ulysses.size, user.grid.ring.size});
  const Gradients<T>& want = threads[user.grid.rank].gradients;
  EXPECT_TRUE(bitwise_equal(got.k, want.k)) << "dk";
  EXPECT_TRUE(bitwise_equal(got.v, want.v)) << "dv";
}

/// The ring of threads, on every rank. Rank 0 runs it, because the ranks of a test share cores.
template <class T>
Whole<T> ring_of_threads(const GradientProblem<T>& problem, int ranks) {
  Whole<T> ring = zeros<T>(problem.what());
  if (world_rank() == 0) {
    TeamRun<T> here = run(problem, {.rings = ranks});
    ring = {std::move(here.attended), std::move(here.gradients)};
  }
  for (Tensor<T>* array : {&ring.attended.out, &ring.attended.lse, &ring.gradients.q, &ring.gradients.k,
                           &ring.gradients.v, &ring.gradients.bias})
    MPI_Bcast(array->data(), static_cast<int>(array->bytes()), MPI_BYTE, 0, MPI_COMM_WORLD);
  return ring;
}

template <class T>
void expect_right(const GradientProblem<T>& problem, const std::string& partition, int ulysses = 1) {
  const Case& what = problem.what();
  SCOPED_TRACE(partition + ", U = " + std::to_string(ulysses) + ": " + to_string(what));
  User<T> user(problem, partition, ulysses);
  const Whole<T> ring = ring_of_threads(problem, user.grid.ring.size);
  const AttentionResult<T> result = user.attend();
  EXPECT_TRUE(bitwise_equal(result.out, rows_of(ring.attended.out, user.rows))) << "out";
  EXPECT_TRUE(bitwise_equal(result.lse, rows_of(ring.attended.lse, user.rows))) << "lse";
  EXPECT_TRUE(user.agrees(result));

  const Gradients<T> got = user.differentiate(result);
  EXPECT_TRUE(bitwise_equal(got.q, rows_of(ring.gradients.q, user.rows))) << "dq";
  if (what.kv_heads % user.grid.ulysses.size == 0) {
    EXPECT_TRUE(bitwise_equal(got.k, rows_of(ring.gradients.k, user.columns))) << "dk";
    EXPECT_TRUE(bitwise_equal(got.v, rows_of(ring.gradients.v, user.columns))) << "dv";
  } else {
    expect_sum_of_replicas(user, got);
  }
  EXPECT_TRUE(numbers_agree(got, problem)) << "the sum over all ranks, on every rank";
  if (what.bias_batch == 0) return;
  const Tensor<T> due = rows_of(ring.gradients.bias, user.rows);
  if (what.bias_heads > 1 || user.grid.ulysses.size == 1) {
    EXPECT_TRUE(bitwise_equal(got.bias, due)) << "dbias";
  } else {  // summed over ranks in another order
    const Tolerance tolerance =
        gradient_tolerance<T>(what.q().heads, problem.want.max_abs_score, problem.want.magnitude_bias);
    const bool zero = std::ranges::all_of(due.view().elements(), [](T x) { return x == 0; });
    EXPECT_TRUE(compare(got.bias, converted<double>(due), tolerance, {.expect_zero = zero}).ok) << "dbias";
  }
}

/// Calls visit(partition, U) for all that this world and these heads allow.
void for_each_partition(Index heads, Index kv_heads,
                        const std::function<void(const std::string&, int)>& visit) {
  const int ranks = ranks_of_world();
  visit("all-gather", 1);
  if (can_share_heads(heads, kv_heads, ranks)) visit("ulysses", 1);
  for (int ulysses = 1; ulysses < ranks; ++ulysses)
    if (ranks % ulysses == 0 && can_share_heads(heads, kv_heads, ulysses)) visit("hybrid", ulysses);
}

template <class T>
class Partitions : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Partitions, Types);

// Ranks that share cores mostly wait for each other: few tokens a case, and few cases on many ranks and in double.
template <class T>
bool has_few_cases() {
  return ranks_of_world() > 4 || sizeof(T) == sizeof(double);
}

TYPED_TEST(Partitions, HaveTheBitsOfTheRing) {
  std::size_t turn = 0;
  for (const Index kv_heads : {12, 4, 1}) {
    if (has_few_cases<TypeParam>() && kv_heads != 4) continue;
    const Index tokens = kv_heads == 4 ? 29 : kv_heads == 1 ? 2 : 13;
    for_each_partition(12, kv_heads, [&](const std::string& partition, int ulysses) {
      const auto scorings = every_scoring(tokens, tokens, 12, 0.5);
      expect_right(make_gradient_problem<TypeParam>({.kv_heads = kv_heads,
                                                     .group = 12 / kv_heads,
                                                     .queries = tokens,
                                                     .keys = tokens,
                                                     .scoring = scorings[turn % scorings.size()].scoring,
                                                     .kind = placement_kinds.begin()[turn % 3]}),
                   partition, ulysses);
      ++turn;
    });
  }
}

TYPED_TEST(Partitions, WithABiasSinksAndDropout) {
  for (const Index bias_heads : {1, 12}) {
    if (has_few_cases<TypeParam>() && bias_heads == 1) continue;
    for_each_partition(12, 4, [&](const std::string& partition, int ulysses) {
      Case what{.batch = 2,
                .kv_heads = 4,
                .group = 3,
                .queries = 13,
                .keys = 17,
                .scoring = {0.5, Mask::causal(4), alibi_slopes(12)},
                .bias_batch = bias_heads == 1 ? 2 : 1,
                .bias_heads = bias_heads,
                .kind = PlacementKind::zigzag};
      for (Index head = 0; head < 12; ++head)
        what.scoring.sinks.push_back(0.3 * static_cast<double>(head) - 1);
      what.scoring.dropout = {.probability = 0.25, .seed = 3};
      expect_right(make_gradient_problem<TypeParam>(what), partition, ulysses);
    });
  }
}

// A rank without queries has a bias of no elements, which is not the same as no bias.
TEST(FewTokens, InEveryPartition) {
  const Index heads = 12;
  for (const std::pair<Index, Index>& bias : {std::pair<Index, Index>{0, 0}, {1, 1}, {1, heads}})
    for_each_partition(heads, heads, [&](const std::string& partition, int ulysses) {
      expect_right(make_gradient_problem<float>({.kv_heads = heads,
                                                 .queries = 2,
                                                 .keys = 1,
                                                 .dim = 3,
                                                 .scoring = {0.5},
                                                 .bias_batch = bias.first,
                                                 .bias_heads = bias.second}),
                   partition, ulysses);
    });
}

// ---- what a rank holds, by the counter of allocations -------------------------------------------------------

template <class T>
Index bytes(Index elements) {
  return elements * static_cast<Index>(sizeof(T));
}

/// The most that the forward and the backward hold besides the arrays of the caller. What they return remains, and no more.
template <class T>
std::pair<Index, Index> most_bytes(const User<T>& user) {
  Index before = allocation::current();
  allocation::reset_peak();
  const auto result = user.attend();
  const Index forward = allocation::peak() - before;
  EXPECT_EQ(allocation::current() - before, bytes<T>(result.out.size() + result.lse.size()));
  before = allocation::current();
  allocation::reset_peak();
  const auto gradients = user.differentiate(result);
  EXPECT_EQ(allocation::current() - before,
            bytes<T>(gradients.q.size() + gradients.k.size() + gradients.v.size()));
  return {forward, allocation::peak() - before};
}

/// What a program asks for, as on two ranks at least: with the caller's q, and out and dO of a backward; no lse, no tiles.
template <class T>
Index planned_bytes(const User<T>& user, bool gradients) {
  return context_bytes({user.grid, user.attention.division, user.placement, user.problem.what().q(),
                        user.problem.what().kv(), user.scoring},
                       gradients, {sizeof(T), sizeof(T), sizeof(T)});
}

/// 48 tokens a rank: all slices are of one length.
template <class T>
GradientProblem<T> even_problem() {
  const Index tokens = Index{48} * ranks_of_world();
  return make_gradient_problem<T>(
      {.batch = 2, .kv_heads = 12, .group = 2, .queries = tokens, .keys = tokens, .dim = 8});
}

// Both layouts of q, k, v and out: those of q, k and v that the caller has are not in the figure.
TYPED_TEST(Partitions, UlyssesHoldsTwoLayouts) {
  if (ranks_of_world() == 1 || 12 % ranks_of_world() != 0) return;
  const auto problem = even_problem<TypeParam>();
  const User<TypeParam> user(problem, "ulysses", 1);
  const Index q = user.q.size(), kv = user.k.size(), row = user.q.shape().per_row().size();
  const auto tile = [&](const auto& kernel) {
    return tile_elements<TypeParam>(kernel.workspace, user.q.shape().dim);
  };
  const auto& kernel = kernels<TypeParam>(best_isa());
  const auto [forward, backward] = most_bytes(user);
  // The first of: q, k and v of the heads, K,V once more where messages take them, the result and l, a tile. The second:
  // q and the result of the heads, out, and what is sent and received of it.
  EXPECT_EQ(forward,
            bytes<TypeParam>(std::max(2 * q + 4 * kv + 2 * row + tile(kernel.forward.many), 5 * q + row)));
  // The largest is when the gradients return: q, out, dO, lse of the heads, dQ, dK, dV; dQ with its pieces, or dQ, dK
  // and dV with the pieces of the last. Or in the middle, with K,V four times (twice as sums).
  const Index kept = 3 * q + row;
  EXPECT_EQ(backward,
            bytes<TypeParam>(std::max({kept + 2 * kv + q + row + 6 * kv + tile(kernel.backward),
                                       kept + q + 2 * kv + 3 * q, kept + 2 * q + 3 * kv + 3 * kv})));
  EXPECT_EQ(planned_bytes(user, false), bytes<TypeParam>(6 * q + 4 * kv)) << "all of it at one time";
  EXPECT_EQ(planned_bytes(user, true), bytes<TypeParam>(10 * q + 12 * kv));
}

// out, m and l, a tile; K,V: of a ring those that are here, and those on their way. The second: dQ, delta, a tile; K,V again,
// and dK,dV of a ring: the sums here, what this step adds to them, and on their way. Of an all-gather: K,V of all ranks; the
// sums of all, and what the other ranks add to this rank's.
TYPED_TEST(Partitions, RingAndAllGatherHoldTheirShards) {
  const auto problem = even_problem<TypeParam>();
  const auto& kernel = kernels<TypeParam>(best_isa());
  const Index ranks = ranks_of_world(), travels = ranks > 1 ? 1 : 0;
  using Shards = std::tuple<const char*, Index, Index>;  // of K,V; of dK,dV
  for (const auto& [partition, kv, sums] :
       {Shards{"ring", 1 + travels, 2 + travels}, {"all-gather", ranks, 2 * ranks - 1}}) {
    SCOPED_TRACE(partition);
    const User<TypeParam> user(problem, partition, 1);
    const Index q = user.q.size(), row = user.q.shape().per_row().size(), shard = 2 * user.k.size();
    const auto tile = [&](const auto& of) {
      return tile_elements<TypeParam>(of.workspace, user.q.shape().dim);
    };
    const auto [forward, backward] = most_bytes(user);
    EXPECT_EQ(forward, bytes<TypeParam>(q + kv * shard + 2 * row + tile(kernel.forward.many)));
    EXPECT_EQ(backward, bytes<TypeParam>(q + (kv + sums) * shard + row + tile(kernel.backward)));
    EXPECT_EQ(planned_bytes(user, false), bytes<TypeParam>(2 * q + std::max<Index>(kv, 2) * shard));
    EXPECT_EQ(planned_bytes(user, true), bytes<TypeParam>(4 * q + std::max<Index>(kv + sums, 5) * shard));
  }
}

// ---- what is refused ----------------------------------------------------------------------------------------

void expect_refused(const Case& what, const std::string& partition, int ulysses, const std::string& said) {
  const auto problem = make_gradient_problem<float>(what);
  User<float> user(problem);
  user.attention.division = division_named(partition, ulysses);
  expect_agreed_error([&] { (void)user.attend(); }, said);
}

TEST(PartitionArguments, ThatCannotBeAreRefused) {
  const int ranks = ranks_of_world();
  const Case one_head{.kv_heads = 1, .queries = 13, .keys = 13};
  if (ranks > 1) {
    expect_refused(one_head, "ulysses", 1, "more than 1 query head: use 1");
    expect_refused({.kv_heads = ranks, .queries = 13, .keys = 13}, "ulysses", 1,
                   "the placement is not for the 1 rank of the ring");
  }
  expect_refused(one_head, "hybrid", ranks + 1,
                 "the job has " + std::to_string(ranks) + ": use a number that divides it");
}

TEST(PartitionArguments, AreTheSameOnAllRanks) {
  if (ranks_of_world() == 1) return;
  const bool last = world_rank() == ranks_of_world() - 1;
  expect_refused({.queries = 13, .keys = 13}, last ? "all-gather" : "ring", 1,
                 "rank 0 has partition ring, rank " + std::to_string(ranks_of_world() - 1) +
                     " has partition all-gather");
}

}  // namespace
}  // namespace ring_attention::test
