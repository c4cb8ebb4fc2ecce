// Overlap on a simulated link, which needs no CPU: the communication that a backward hides, and what it cannot hide. (A
// forward: ../parallel/simulated_link_test.cpp.)
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

/// A ring of three whose every hop takes `latency`.
Exposed exposed_seconds(Seconds compute) {
  const Placement placement(PlacementKind::contiguous, Index{2} * ring_size, ring_size);
  const Shape shape{1, 1, placement.seq(), 4};
  std::vector<double> of_kv(ring_size), of_gradient(ring_size);
  LoopbackWorld world(ring_size, {.latency = latency});
  world.run([&](int rank) {
    WorkingBackward engine([&](const auto&) { std::this_thread::sleep_for(compute); });
    KvParcel<float> kv(shape, placement, rank), gradients(shape, placement, rank);
    LoopbackTransport kv_transport(world, rank, 0), gradient_transport(world, rank, 1);
    ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
    of_kv[static_cast<std::size_t>(rank)] = kv_transport.statistics().exposed_seconds;
    of_gradient[static_cast<std::size_t>(rank)] = gradient_transport.statistics().exposed_seconds;
  });
  return {std::reduce(of_kv.begin(), of_kv.end()) / ring_size,
          std::reduce(of_gradient.begin(), of_gradient.end()) / ring_size, std::ranges::min(of_kv)};
}

constexpr double most = 0.75;  // a thread may lose its core between start() and finish()

TEST(SimulatedLink, OfABackward) {
  auto hidden =
      std::async(std::launch::async, exposed_seconds, 1.5 * latency);  // both sleep most of the time
  const Exposed exposed = exposed_seconds(Seconds(0));
  // Both channels start at once, so that one wait is for both; the last hop of the gradients is alone.
  EXPECT_GE(exposed.kv + exposed.gradient, most * 3 * latency.count()) << "without compute";
  const Exposed left = hidden.get();
  // The last hop of the gradients moves what the last step computed: no step is left that could hide it.
  EXPECT_GE(left.gradient, most * latency.count());
  EXPECT_LT(left.kv_least, 1.2 * latency.count()) << "K,V are hidden; else it is 2";
}

}  // namespace
}  // namespace ring_attention::test
