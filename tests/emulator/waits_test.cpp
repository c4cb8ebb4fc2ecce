// Each wait between streams is needed: without it some seed gives a wrong number. Of the transports between threads; those
// over NCCL are in nccl_waits_test.cpp. The program is linked with a copy of staged.cpp, in which waits can be left out.

#include <gtest/gtest.h>

#include "cuda/needed_barriers.hpp"
#include "cuda/parallel_runs.hpp"

namespace ring_attention::test {
namespace {

const Case what{.kv_heads = 1,
                .group = 2,
                .queries = 23,
                .keys = 23,
                .dim = 8,
                .scoring = {0.5, Mask::causal()},
                .kind = PlacementKind::zigzag};
void expect_every_wait_needed(const char* transport, std::size_t waits, bool staged) {
  const auto problem = problem_in<float>(what, nullptr);
  const auto agrees = [&] {
    const auto got = run_on_gpu<float>(problem, {.rings = 3}, staged, {}, std::chrono::seconds(5));
    return agrees_in(0, got.attended, problem.forward, whole(what.queries)) &&
           gradients_agree_in(0, got.gradients, problem);
  };
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    emulator::options().seed = seed;
    EXPECT_TRUE(agrees()) << transport << ", seed " << seed;
  }
  expect_all_needed(transport, [&](std::uint64_t) { return bool(agrees()); }, 100, waits, "/staged.cpp");
}

TEST(Waits, OfTheStagedTransportAreNeeded) { expect_every_wait_needed("staged", 3, true); }
TEST(Waits, OfTheSynchronizedTransportAreNeeded) { expect_every_wait_needed("synchronized", 2, false); }

}  // namespace
}  // namespace ring_attention::test
