// Real rings beside the recurrence.
#pragma once

#include <future>

#include "common/lesson.hpp"
#include "noise.hpp"
#include "plan/ring_recurrence.hpp"
#include "sleeping_ring.hpp"

namespace ring_attention::lesson_14 {

/// Printed and recorded; a test of the library asserts on them, with more runs (tests/plan/loopback_time_test.cpp).
inline void show_real_rings(Lesson& lesson) {
  Table table({"ranks", "predicted", "measured", "measured / predicted"});
  const Seconds compute = [](int r, int t) { return 0.03 * plan::noise_factor(0.4, 3, r, t); };
  constexpr double hop = 0.025;
  std::vector<double> predicted, measured;
  for (const int ranks : {2, 4, 8}) {
    predicted.push_back(plan::ring_seconds(
        ranks, ranks, ranks - 1, compute, [](int, int) { return hop; }, plan::Hops::at_finish));
    const auto run = [&] { return real_ring_seconds(ranks, compute, hop); };
    auto second = std::async(std::launch::async, run), third = std::async(std::launch::async, run);
    measured.push_back(std::min({run(), second.get(), third.get()}));
    table.row({std::to_string(ranks), human_seconds(predicted.back()), human_seconds(measured.back()),
               format("%.3f", measured.back() / predicted.back())});
  }
  lesson.print(table);
  lesson.say(
      "  Threads over a simulated link, noise 0.4; the fastest of 3 runs, which sleep at the same time.");
  lesson.record("real_predicted_seconds", predicted);
  lesson.record("real_measured_seconds", measured);
}

}  // namespace ring_attention::lesson_14
