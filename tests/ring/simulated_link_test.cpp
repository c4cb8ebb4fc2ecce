// Overlap on a simulated link, which needs no CPU: the communication that a ring hides, and what it cannot hide.
//
// Compute is a sleep, so that ranks that share cores compute at the same time. All times are far apart: a busy
// machine may be late by more than a step.

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

#include "support/engines.hpp"

namespace ring_attention::test {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int ring_size = 3;
constexpr Seconds latency{0.2};

/// Seconds that the ranks waited. A rank that is late waits less, and the next one waits more: the average
/// is the wait for the simulated link.
struct Exposed {
  double kv = 0, gradient = 0;  // on average
  double kv_least = 0;          // of the rank that waited least
};

/// A ring of three, forward or backward, whose every hop takes `latency`.
Exposed exposed_seconds(Seconds compute, bool backward) {
  const Placement placement(PlacementKind::contiguous, Index{2} * ring_size, ring_size);
  const Shape shape{1, 1, placement.seq(), 4};
  std::vector<double> of_kv(ring_size), of_gradient(ring_size);
  LoopbackWorld world(ring_size, {.latency = latency});
  world.run([&](int rank) {
    WorkingEngine engine([&] { std::this_thread::sleep_for(compute); });
    WorkingBackward backward_engine([&](const auto&) { std::this_thread::sleep_for(compute); });
    KvParcel<float> kv(shape, placement, rank), gradients(shape, placement, rank);
    LoopbackTransport kv_transport(world, rank, 0), gradient_transport(world, rank, 1);
    if (backward)
      ring_backward(backward_engine, kv_transport, gradient_transport, kv, gradients);
    else
      ring_forward(engine, kv_transport, kv);
    of_kv[static_cast<std::size_t>(rank)] = kv_transport.statistics().exposed_seconds;
    of_gradient[static_cast<std::size_t>(rank)] = gradient_transport.statistics().exposed_seconds;
  });
  return {std::reduce(of_kv.begin(), of_kv.end()) / ring_size,
          std::reduce(of_gradient.begin(), of_gradient.end()) / ring_size, std::ranges::min(of_kv)};
}

constexpr double most = 0.75;  // a thread may lose its core between start() and finish()

/// The rings of all tests. They begin at the same time, because they sleep most of it.
struct Rings {
  using Result = std::shared_future<Exposed>;
  static Result begin(Seconds compute, bool backward) {
    return std::async(std::launch::async, exposed_seconds, compute, backward).share();
  }
  Result forward = begin(Seconds(0), false), hidden_forward = begin(1.5 * latency, false),
         backward = begin(Seconds(0), true), hidden_backward = begin(1.5 * latency, true);
};

const Rings& rings() {
  static const Rings all;
  return all;
}

TEST(SimulatedLink, WithoutComputeEveryHopOfTheForwardIsExposed) {
  EXPECT_GE(rings().forward.get().kv, most * 2 * latency.count());
}

TEST(SimulatedLink, ComputeLongerThanAHopHidesTheForward) {
  EXPECT_LT(rings().hidden_forward.get().kv_least, 1.2 * latency.count()) << "not hidden it is 2";
}

TEST(SimulatedLink, WithoutComputeEveryHopOfTheBackwardIsExposed) {
  const Exposed exposed = rings().backward.get();
  // Both channels start at once, so that one wait is for both; the last hop of the gradients is alone.
  EXPECT_GE(exposed.kv + exposed.gradient, most * 3 * latency.count());
}

// The last hop of the gradients moves what the last step computed: no step is left that could hide it.
TEST(SimulatedLink, TheLastHopOfTheGradientsIsAlwaysExposed) {
  const Exposed exposed = rings().hidden_backward.get();
  EXPECT_GE(exposed.gradient, most * latency.count());
  EXPECT_LT(exposed.kv_least, 1.2 * latency.count()) << "K,V are hidden; else it is 2";
}

}  // namespace
}  // namespace ring_attention::test
