// Real rings beside the recurrence: threads over a simulated link, whose computing is a sleep.
#pragma once

#include <chrono>
#include <cmath>
#include <thread>

#include "common/lesson.hpp"
#include "noise.hpp"
#include "ring_attention/plan/ring_recurrence.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::lesson_14 {

struct SleepingEngine {
  std::function<double(int step)> seconds;
  int step = 0;
  void accumulate(const KeyValue<float>&, const Progress&) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds(step++)));
  }
};

/// Seconds of the library's forward, every hop of which takes `hop` seconds.
inline double real_ring_seconds(int ranks, const Seconds& compute, double hop) {
  const Placement placement(PlacementKind::contiguous, 2 * ranks, ranks);
  LoopbackWorld world(ranks, {.latency = std::chrono::duration<double>(hop)});
  const auto begin = std::chrono::steady_clock::now();
  world.run([&](int rank) {
    SleepingEngine engine{[&](int step) { return compute(rank, step); }};
    KvParcel<float> kv({1, 1, placement.seq(), 4}, placement, rank);
    LoopbackTransport transport(world, rank);
    ring_forward(engine, transport, kv);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Printed and recorded; a test of the library asserts on them, with more runs (tests/plan/loopback_time_test.cpp).
inline void show_real_rings(Lesson& lesson) {
  Table table({"ranks", "predicted", "measured", "measured / predicted"});
  const Seconds compute = [](int r, int t) { return 0.03 * plan::noise_factor(0.4, 3, r, t); };
  constexpr double hop = 0.025;
  std::vector<double> predicted, measured;
  for (const int ranks : {2, 4, 8}) {
    predicted.push_back(plan::ring_seconds(
        ranks, ranks, ranks - 1, compute, [](int, int) { return hop; }, plan::Hops::at_finish));
    measured.push_back(real_ring_seconds(ranks, compute, hop));
    for (int run = 1; run < 3; ++run)
      measured.back() = std::min(measured.back(), real_ring_seconds(ranks, compute, hop));
    table.row({std::to_string(ranks), human_seconds(predicted.back()), human_seconds(measured.back()),
               format("%.3f", measured.back() / predicted.back())});
  }
  lesson.print(table);
  lesson.say("  Threads over a simulated link, noise 0.4; the fastest of 3 runs.");
  lesson.record("real_predicted_seconds", predicted);
  lesson.record("real_measured_seconds", measured);
}

}  // namespace ring_attention::lesson_14
