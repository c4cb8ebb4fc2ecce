// forward and backward of ring_attention.hpp, called as a program of a user calls them: the main of this program calls
// MPI_Init. Results have the bits of the ring of threads, and agree with the dense reference.

#include "ring_attention/ring_attention.hpp"

#include <gtest/gtest.h>

#include <array>

#include "api/user.hpp"
#include "support/masks.hpp"

namespace {
bool broken_link = false;
}

// MPI's profiling interface: the link of this rank fails after its messages have been posted.
extern "C" int MPI_Testall(int count, MPI_Request requests[], int* flag, MPI_Status statuses[]) {
  return broken_link ? MPI_ERR_OTHER : PMPI_Testall(count, requests, flag, statuses);
}

namespace ring_attention::test {
namespace {

/// The bits of rank `user.place` of the ring of threads, and the values of dense attention.
template <class T>
void expect_right(const GradientProblem<T>& problem, const User<T>& user) {
  SCOPED_TRACE(to_string(problem.what()));
  const auto threads = run(problem, {.rings = user.place.size});
  const RankRun<T>& mine = threads[user.place.rank];
  const AttentionResult<T> result = user.attend();
  EXPECT_TRUE(same_bits(result, mine.attended));
  EXPECT_TRUE(same_bits(user.differentiate(result), mine.gradients));
  EXPECT_TRUE(user.agrees(result));
  EXPECT_TRUE(agrees(threads, problem));
}
template <class T>
void expect_right(const Case& what, MPI_Comm comm = MPI_COMM_WORLD) {
  const GradientProblem<T> problem = make_gradient_problem<T>(what);
  expect_right(problem, User<T>(problem, comm));
}

template <class T>
class RingAttention : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(RingAttention, Types);

// ---- what it returns -----------------------------------------------------------------------------------

TYPED_TEST(RingAttention, HasTheBitsOfTheRingOfThreads) {
  for_each_case(6, [&](Dice& dice, Index index) {
    Case what = random_case(dice, index, place_in(MPI_COMM_WORLD).size);
    what.block = 64;
    expect_right<TypeParam>(what);
  });
}

TYPED_TEST(RingAttention, RanksMayHaveNoTokens) {
  expect_right<TypeParam>({.group = 2, .queries = 1, .keys = 1});
  expect_right<TypeParam>(
      {.queries = 2, .keys = 9, .scoring = {1, Mask::causal(7)}, .kind = PlacementKind::zigzag});
  expect_right<TypeParam>({.queries = 9, .keys = 2, .kind = PlacementKind::striped});
}

TYPED_TEST(RingAttention, WithoutKeysNothingIsSeen) {
  const Ring place = place_in(MPI_COMM_WORLD);
  const Placements placement(Placement(PlacementKind::contiguous, 5, place.size),
                             Placement(PlacementKind::contiguous, 0, place.size));
  const Tensor<TypeParam> q({1, 2, placement.queries.tokens(place.rank), 4}, 1);
  const View<const TypeParam> no_keys(nullptr, {1, 2, 0, 4});
  const auto result = forward({mpi(MPI_COMM_WORLD)}, q, no_keys, no_keys, placement, {});
  for (const TypeParam out : result.out.view().elements()) EXPECT_EQ(out, 0);
  for (const TypeParam lse : result.lse.view().elements()) EXPECT_EQ(lse, negative_infinity<TypeParam>);
}

// Queries and keys with a placement each: one rank's rows of dense attention.
TYPED_TEST(RingAttention, QueriesAndKeysHavePlacementsOfTheirOwn) {
  const auto problem = make_gradient_problem<TypeParam>(
      {.group = 2, .queries = 13, .keys = 17, .scoring = every_scoring(13, 17, 4, 0.5).back().scoring});
  for (const PlacementKind of_queries : placement_kinds)
    for (const PlacementKind of_keys : placement_kinds) {
      if (of_queries == of_keys) continue;  // see above
      const User<TypeParam> user(problem, MPI_COMM_WORLD, {of_queries, of_keys});
      const auto result = user.attend();
      EXPECT_TRUE(user.agrees(result));
      const Gradients<TypeParam> part = user.differentiate(result);
      // All ranks put their rows into zeros, and the sum is the whole.
      Gradients<TypeParam> all{Tensor<TypeParam>(problem.what().q()), Tensor<TypeParam>(problem.what().kv()),
                               Tensor<TypeParam>(problem.what().kv())};
      put_rows(all.q, part.q, user.rows);
      put_rows(all.k, part.k, user.columns);
      put_rows(all.v, part.v, user.columns);
      for (Tensor<TypeParam>* array : {&all.q, &all.k, &all.v})
        MPI_Allreduce(MPI_IN_PLACE, array->data(), static_cast<int>(array->size()),
                      sizeof(TypeParam) == sizeof(float) ? MPI_FLOAT : MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      EXPECT_TRUE(agrees(all, problem));
    }
}

// ---- the caller's MPI ----------------------------------------------------------------------------------

TEST(RingAttentionCommunicator, WorksBelowMultipleThreads) {
  int level = MPI_THREAD_MULTIPLE;
  MPI_Query_thread(&level);
  EXPECT_LT(level, MPI_THREAD_MULTIPLE) << "these tests would not show what they say";
}

// Two rings at the same time, of the even and of the odd ranks, each in the opposite order.
TEST(RingAttentionCommunicator, MayBeAPartOfTheWorld) {
  const Ring world = place_in(MPI_COMM_WORLD);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, -world.rank, &part);
  expect_right<float>(
      {.group = 2, .queries = 23, .keys = 23 + world.rank % 2, .scoring = {1, Mask::causal()}}, part);
  expect_right<double>({.queries = 23, .keys = 23 + world.rank % 2, .kind = PlacementKind::striped}, part);
  MPI_Comm_free(&part);
}

// A receive for any message of any rank is pending, and a message that is not received yet is on its way.
TEST(RingAttentionCommunicator, MayCarryOtherMessages) {
  const Ring world = place_in(MPI_COMM_WORLD);
  int got = -1, early = -1, done = 0;
  const int mine = world.rank;
  MPI_Comm other = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  std::array<MPI_Request, 2> requests{};
  MPI_Isend(&mine, 1, MPI_INT, world.next(), 0, other, requests.data());
  MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[1]);

  expect_right<float>({.queries = 23, .keys = 23});
  expect_right<double>({.queries = 8, .keys = 23}, other);

  MPI_Test(&requests[1], &done, MPI_STATUS_IGNORE);
  EXPECT_EQ(done, 0) << "the pending receive took a message of the ring";
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Send(&mine, 1, MPI_INT, world.next(), 7, MPI_COMM_WORLD);
  MPI_Recv(&early, 1, MPI_INT, world.prev(), 0, other, MPI_STATUS_IGNORE);
  MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE);
  EXPECT_EQ(got, world.prev());
  EXPECT_EQ(early, world.prev());
  MPI_Comm_free(&other);
}

TEST(RingAttentionCommunicator, KeepsItsErrorHandler) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  const auto problem = make_gradient_problem<float>({.queries = 9, .keys = 9});
  const User<float> user(problem, comm);
  for (const MPI_Errhandler handler : {MPI_ERRORS_ARE_FATAL, MPI_ERRORS_RETURN}) {
    MPI_Comm_set_errhandler(comm, handler);
    EXPECT_TRUE(user.agrees(user.attend()));
    MPI_Errhandler after = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(comm, &after);
    EXPECT_EQ(after, handler);
    MPI_Errhandler_free(&after);
  }
  MPI_Comm_free(&comm);
}

// MPI has a limited number of communicators. Its handler for MPI_COMM_WORLD would end the process.
TEST(RingAttentionCommunicator, ThatCannotBeDuplicatedIsAnError) {
  const auto problem = make_gradient_problem<float>({.queries = 9, .keys = 9});
  const User<float> user(problem);
  std::vector<MPI_Comm> all;
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  for (MPI_Comm comm = MPI_COMM_NULL; MPI_Comm_dup(MPI_COMM_SELF, &comm) == MPI_SUCCESS;) all.push_back(comm);
  EXPECT_THROW((void)mpi(MPI_COMM_WORLD), Error);
  for (MPI_Comm& comm : all) MPI_Comm_free(&comm);
  EXPECT_TRUE(user.agrees(user.attend()));
}

// ---- a failure that one rank alone knows ---------------------------------------------------------------

// The last rank posts its messages, and then its MPI fails. It throws, and MPI goes on to fill its parcel, whose memory
// has to be there. The other rank gets all it needs; a third one would wait.
TYPED_TEST(RingAttention, AFailureOfOneRankIsThrownThere) {
  const Ring world = place_in(MPI_COMM_WORLD);
  MPI_Comm two = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank / 2, 0, &two);
  const Ring place = place_in(two);
  const auto problem =
      make_gradient_problem<TypeParam>({.queries = 8, .keys = 2048, .dim = 64});  // 256 KiB and more
  const User<TypeParam> user(problem, two);
  if (place.size == 2) {
    broken_link = place.rank == 1;
    if (broken_link)
      EXPECT_THROW((void)user.attend(), Error);
    else
      EXPECT_TRUE(user.agrees(user.attend()));
    broken_link = false;
    const std::vector<char> junk(std::size_t{8} << 20U, '\x5a');  // takes what was freed
    MPI_Barrier(two);
    EXPECT_EQ(std::ranges::count(junk, '\x5a'), std::ssize(junk));
  }
  EXPECT_TRUE(user.agrees(user.attend()));
  MPI_Comm_free(&two);
}

}  // namespace
}  // namespace ring_attention::test
