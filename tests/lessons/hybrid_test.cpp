// The mistakes of lesson 10: each of them fails the check that the right hybrid passes, and passes it on a grid of ranks that
// hides it.

#include <gtest/gtest.h>

#include <array>

#include "10_ulysses_and_hybrid/ulysses.hpp"
// after the idea
#include "10_ulysses_and_hybrid/run.hpp"

namespace ring_attention::test {
namespace {

/// Lesson 10's results of a causal problem with ALiBi, where `ulysses` ranks share the heads of a shard.
bool hybrid_agrees(const char* mutant, int ulysses, Index heads, Index kv_heads) {
  const Communicator comm(MPI_COMM_WORLD);
  Lesson lesson("10", "", "", &comm);
  lesson.offer_mutants(lesson_10::mutants);
  const std::array arguments{"10", "--json", "--mutant", mutant};
  require(lesson.parse(static_cast<int>(arguments.size()), arguments.data()), "lesson 10 has this mutant");
  const RandomProblem problem{
      {1, heads, 24, 4}, {1, kv_heads, 24, 4}, {0.5, Mask::causal(), alibi_slopes(heads)}};
  const lesson_10::RankShare part(comm, problem, ulysses, lesson);
  lesson_10::Sent sent;
  return all_of_ranks(comm, part.against_reference(lesson_10::run(part, sent)).ok);
}

bool is_world_of(int ranks) { return Communicator(MPI_COMM_WORLD).size() == ranks; }

TEST(WrongHybrids, OnAGridOfTwoByTwo) {
  if (!is_world_of(4)) GTEST_SKIP() << "needs 4 ranks";
  EXPECT_TRUE(hybrid_agrees("none", 2, 4, 2));
  EXPECT_FALSE(hybrid_agrees("interleaved-heads", 2, 4, 2));
  EXPECT_TRUE(hybrid_agrees("interleaved-heads", 1, 4, 4)) << "a group of one";
  EXPECT_FALSE(hybrid_agrees("local-heads", 2, 4, 4));
  EXPECT_TRUE(hybrid_agrees("none", 4, 4, 2));
  EXPECT_FALSE(hybrid_agrees("first-replica", 4, 4, 2));
  EXPECT_TRUE(hybrid_agrees("first-replica", 2, 4, 2)) << "no replicas: nothing to sum";
  EXPECT_TRUE(hybrid_agrees("swapped-axes", 2, 6, 6)) << "a square grid hides it";
}

TEST(WrongHybrids, OnAGridWhoseSidesDiffer) {
  if (!is_world_of(6)) GTEST_SKIP() << "needs 6 ranks";
  for (const int ulysses : {2, 3}) {
    EXPECT_TRUE(hybrid_agrees("none", ulysses, 6, 6));
    EXPECT_FALSE(hybrid_agrees("swapped-axes", ulysses, 6, 6)) << ulysses;
    EXPECT_FALSE(hybrid_agrees("world-placement", ulysses, 6, 6)) << ulysses;
  }
}

}  // namespace
}  // namespace ring_attention::test
