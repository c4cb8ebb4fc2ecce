// Ulysses, its hybrid with a ring and the all-gather of virtual ranks on one GPU: each rank a thread with a stream, all
// arrays in device memory.

#include <gtest/gtest.h>

#include "cuda/parallel_runs.hpp"

namespace ring_attention::test {
namespace {

Case case_of(Index kv_heads, Index group, PlacementKind kind) {
  return {.kv_heads = kv_heads,
          .group = group,
          .queries = 29,
          .keys = 29,
          .dim = 16,
          .scoring = {0.25, Mask::causal(), alibi_slopes(kv_heads * group)},
          .kind = kind};
}

template <class T>
void expect_a_right_hybrid(const Case& what, int ulysses, int rings) {
  SCOPED_TRACE(std::to_string(ulysses) + " x " + std::to_string(rings) + ": " + to_string(what));
  const auto problem = problem_in<T>(what, nullptr);
  const Team team{ulysses, rings};
  const auto got = run_on_gpu<T>(problem, team), on_cpu = run(problem, team);
  EXPECT_TRUE(agrees_in(unit_of<T>, got.attended, problem.forward, whole(what.queries)));
  EXPECT_TRUE(gradients_agree_in(2 * unit_of<T>, got.gradients, problem));
  if (what.kv_heads % ulysses == 0) {
    EXPECT_TRUE(same_bits<float>(got, run_on_gpu<T>(problem, {.rings = rings})))
        << "a ring that computes all heads";
  }
  for (int rank = 0; rank < team.ranks(); ++rank)
    EXPECT_EQ(got[rank].pieces.messages_sent, on_cpu[rank].pieces.messages_sent);
}

TEST(DeviceParallel, AHybridAgreesWithTheReferenceAndHasTheBitsOfTheRing) {
  expect_a_right_hybrid<float>(case_of(4, 1, PlacementKind::zigzag), 4, 1);
  expect_a_right_hybrid<float>(case_of(2, 2, PlacementKind::striped), 2, 2);
  expect_a_right_hybrid<Bf16>(case_of(2, 3, PlacementKind::zigzag), 2, 3);
}

TEST(DeviceParallel, GradientsOfReplicasAreSummed) {
  expect_a_right_hybrid<float>(case_of(1, 4, PlacementKind::zigzag), 4, 1);
  expect_a_right_hybrid<Fp16>(case_of(2, 2, PlacementKind::contiguous), 4, 1);
}

TEST(DeviceParallel, AllGatherHasTheBitsOfTheRing) {
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::zigzag}) {
    const Case what = case_of(2, 2, kind);
    const auto problem = problem_in<float>(what, nullptr);
    EXPECT_TRUE(same_bits<float>(run_on_gpu<float>(problem, {.rings = 3, .gathers = true}),
                                 run_on_gpu<float>(problem, {.rings = 3})));
  }
}

}  // namespace
}  // namespace ring_attention::test
