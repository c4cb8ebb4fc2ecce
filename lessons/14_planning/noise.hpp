// What lesson 14 shows first: a model with a barrier overstates noise, and what one slow rank does.
#pragma once

#include <cmath>

#include "common/lesson.hpp"
#include "mistakes.hpp"
#include "plan/noise.hpp"

namespace ring_attention::lesson_14 {

inline Seconds always(double seconds) {
  return [=](int, int) { return seconds; };
}

/// Steps of mean 1 whose standard deviation is cv; hops of 0.3.
inline Seconds noisy(double cv, std::uint64_t seed) {
  return [=](int r, int t) { return plan::noise_factor(cv, seed, r, t); };
}

/// \returns for 64 ranks and noise 0.2: with a barrier, in a ring
inline std::pair<double, double> show_noise(Lesson& lesson, const std::string& mutant) {
  Table table({"ranks", "noise", "with a barrier", "a ring"});
  std::pair<double, double> shown;
  for (const int n : {8, 64, 512})
    for (const double cv : {0.05, 0.2}) {
      double barrier = 0, ring = 0;
      const int runs = n == 8 ? 64 : n == 64 ? 8 : 1;
      for (int i = 0; i < runs; ++i) {
        const Seconds compute = noisy(cv, lesson.seed() * 1000 + static_cast<std::uint64_t>(i));
        barrier += lesson::barrier_seconds(n, compute, always(0.3)) / n / runs;
        ring += ring_seconds(mutant, n, compute, always(0.3)) / n / runs;
      }
      table.row({std::to_string(n), format("%.2f", cv), format("%.3f", barrier), format("%.3f", ring)});
      if (n == 64 && cv == 0.2) shown = {barrier, ring};
    }
  lesson.print("noise", table);
  lesson.say(
      "  Seconds a step; without noise it is 1. Noise: standard deviation of a step's computing, "
      "log-normal.");
  lesson.check("64 ranks, noise 0.2: a barrier makes it 1.575, within 0.03",
               std::abs(shown.first - 1.575) <= 0.03, format("%.3f", shown.first));
  lesson.check("and a ring 1.095, within 0.03", std::abs(shown.second - 1.095) <= 0.03,
               format("%.3f", shown.second));
  return shown;
}

inline void show_slow(Lesson& lesson, const std::string& mutant) {
  Table table({"ranks", "one rank 30 % slow", "one pause of 10 steps", "one hop of 1.5 steps"});
  bool rank_slows_all = true, pause_once = true, link_slows_all = true;
  for (const int n : {8, 64, 512}) {
    const double slow_rank =
        ring_seconds(mutant, n, [=](int r, int) { return r == n / 2 ? 1.3 : 1; }, always(0.3)) / n;
    const double pause =
        ring_seconds(mutant, n, [](int r, int t) { return r == 3 && t == 2 ? 11 : 1; }, always(0.3)) - n;
    const double slow_link =
        ring_seconds(mutant, n, always(1), [](int r, int) { return r == 0 ? 1.5 : 0.3; }) / n;
    table.row({std::to_string(n), format("%.3f a step", slow_rank), format("+%.2f steps, once", pause),
               format("%.3f a step", slow_link)});
    rank_slows_all = rank_slows_all && std::abs(slow_rank - 1.3) <= 1e-9;
    pause_once = pause_once && std::abs(pause - 10) <= 1e-9;
    link_slows_all = link_slows_all && std::abs(slow_link - ((n - 1) * 1.5 + 1) / n) <= 1e-9;
  }
  lesson.print("slow", table);
  lesson.check("a slow rank slows all to its own speed", rank_slows_all);
  lesson.check("a pause costs its length, once", pause_once);
  lesson.check("a slow link costs every step but the last", link_slows_all);
}

/// What is right where the answer is known without a recurrence.
inline void show_known(Lesson& lesson, const std::string& mutant) {
  lesson.check("8 ranks, hops hidden: 8 steps",
               std::abs(ring_seconds(mutant, 8, always(1), always(0.3)) - 8) <= 1e-9);
  lesson.check("8 ranks, hops of 1.5: 7 hops and the last step",
               std::abs(ring_seconds(mutant, 8, always(1), always(1.5)) - 11.5) <= 1e-9);
  constexpr double c = 32;
  const double ideal = c * (8 * c + 1) / 2;
  const double path =
      lesson::barrier_seconds(8, [&](int r, int t) { return causal_pairs(mutant, c, r, t); }, always(0));
  lesson.check("lesson 09's contiguous ring, 256 tokens: 1.872 times ideal",
               format("%.3f", path / ideal) == "1.872", format("%.3f", path / ideal));
}

}  // namespace ring_attention::lesson_14
