// Each wait between streams is needed: without it some seed gives a wrong number. Of the transports between threads; those
// over NCCL are in nccl_waits_test.cpp. The included copy of staged.hpp has waits that can be left out.

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
constexpr int ranks = 3;

/// Forward and backward on threads, with the transports that make(stream, arguments...) returns.
std::vector<ParallelResult<float>> run_ring(const GradientProblem<float>& problem, CopyParcel copy,
                                            auto make) {
  std::vector<ParallelResult<float>> results(ranks);
  LoopbackWorld world(ranks, {}, std::chrono::seconds(5), std::move(copy));
  world.run([&](int rank) {
    const cuda::Stream stream;
    const HybridPlace place(rank, ranks, 1);
    SynchronizedAllToAll link(stream.handle(), world, rank, place.ulysses);
    results[static_cast<std::size_t>(rank)] = run_rank_hybrid_on_gpu<float>(
        problem, place, link, [&](int channel) { return make(stream.handle(), world, rank, channel); },
        stream.handle());
  });
  return results;
}

void expect_every_wait_needed(const char* transport, std::size_t waits, auto run) {
  const auto problem = problem_in<float>(what, nullptr);
  const auto agrees = [&] {
    const Whole<float> got = gathered(run(problem), what, 1);
    return agrees_in(0, got.attended, problem.forward, whole(what.queries)) &&
           gradients_agree_in(0, got.gradients, problem);
  };
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    emulator::options().seed = seed;
    EXPECT_TRUE(agrees()) << transport << ", seed " << seed;
  }
  expect_all_needed(
      transport, [&](std::uint64_t) { return bool(agrees()); }, 100, waits, "staged.hpp");
}

TEST(Waits, OfTheStagedTransportAreNeeded) {
  expect_every_wait_needed("staged", 3, [](const GradientProblem<float>& problem) {
    return run_ring(problem, copy_in_host_memory,
                    [](StreamHandle stream, auto& world, int rank, int channel) {
                      const auto most = static_cast<std::size_t>(2 * what.kv().size()) * sizeof(float);
                      return StagedTransport<LoopbackTransport>(stream, most, world, rank, channel);
                    });
  });
}

TEST(Waits, OfTheSynchronizedTransportAreNeeded) {
  expect_every_wait_needed("synchronized", 1, [](const GradientProblem<float>& problem) {
    return run_ring(problem, copy_between_devices,
                    [](StreamHandle stream, auto& world, int rank, int channel) {
                      return SynchronizedTransport<LoopbackTransport>(stream, world, rank, channel);
                    });
  });
}

}  // namespace
}  // namespace ring_attention::test
