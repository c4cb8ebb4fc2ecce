#include "plan/ring_recurrence.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>

#include "plan/noise.hpp"

namespace ring_attention::plan {
namespace {

using Seconds = std::function<double(int, int)>;

double forward(int ranks, const Seconds& compute, const Seconds& hop, Hops kind = Hops::overlapped) {
  return ring_seconds(ranks, ranks, ranks - 1, compute, hop, kind);
}

Seconds always(double seconds) {
  return [=](int, int) { return seconds; };
}

TEST(RingRecurrence, EqualStepsWithHiddenHops) {
  for (const Hops kind : {Hops::overlapped, Hops::at_finish, Hops::lockstep})
    for (const int ranks : {1, 2, 3, 8})
      EXPECT_DOUBLE_EQ(forward(ranks, always(1), always(0.3), kind), ranks);
}

TEST(RingRecurrence, HopsLongerThanStepsAreExposed) {  // N - 1 hops, and a last step without one
  for (const Hops kind : {Hops::overlapped, Hops::at_finish, Hops::lockstep})
    EXPECT_DOUBLE_EQ(forward(5, always(1), always(1.5), kind), 4 * 1.5 + 1);
}

TEST(RingRecurrence, InTurnEvenRanksTakeTwoRoundsAndOddOnesThree) {
  EXPECT_DOUBLE_EQ(forward(2, always(1), always(0.25), Hops::in_turn), 2 + 2 * 0.25);
  EXPECT_DOUBLE_EQ(forward(4, always(1), always(0.25), Hops::in_turn), 4 + 3 * 2 * 0.25);
  // Three ranks: 0 -> 1, then 2 -> 0 (0 receives after it has sent), then 1 -> 2. By hand, two exchanges.
  EXPECT_DOUBLE_EQ(ring_seconds(3, 1, 1, always(1), always(0.25), Hops::in_turn), 1 + 3 * 0.25);
}

TEST(RingRecurrence, OneSlowRankSlowsAllByItsOwnTimeOnly) {
  for (const int ranks : {8, 64, 512})
    EXPECT_NEAR(
        forward(ranks, [=](int r, int) { return r == ranks / 2 ? 1.3 : 1; }, always(0.3)) / ranks, 1.3, 1e-9);
}

TEST(RingRecurrence, OnePauseCostsAllItsLengthOnce) {
  for (const int ranks : {8, 64, 512})
    EXPECT_NEAR(forward(
                    ranks, [](int r, int t) { return r == 3 && t == 2 ? 11 : 1; }, always(0.3)) -
                    ranks,
                10, 1e-9);
}

TEST(RingRecurrence, OneSlowLink) {  // all steps but the last wait for it
  for (const int ranks : {8, 64, 512})
    EXPECT_NEAR(forward(ranks, always(1), [](int r, int) { return r == 0 ? 1.5 : 0.3; }) / ranks,
                (1.5 * (ranks - 1) + 1) / ranks, 1e-9);
}

TEST(RingRecurrence, APauseTravelsOneRankAStep) {
  // Ranks 0 .. 3, steps of 1, hops of 0: rank 0 needs 3 for its first step. The neighbours end their first step with
  // it; the rank across does not before its second.
  const auto late = [](int r, int t) { return r == 0 && t == 0 ? 3.0 : 1.0; };
  EXPECT_DOUBLE_EQ(ring_seconds(4, 1, 0, late, always(0)), 3);
  EXPECT_DOUBLE_EQ(ring_seconds(4, 2, 1, late, always(0)), 4);
  // With slack: rank 2 alone is slow in its first step; both delays overlap instead of adding up.
  const auto two = [](int r, int t) { return (r == 0 && t == 0) || (r == 2 && t == 1) ? 3.0 : 1.0; };
  EXPECT_DOUBLE_EQ(forward(4, two, always(0)), 6);
  EXPECT_DOUBLE_EQ(forward(4, two, always(0), Hops::lockstep), 3 + 3 + 1 + 1);
}

/// The same, message by message: the oracle. Every rank's step t and every hop is an event that starts when all that it
/// waits for has ended; times are found by repeating until nothing changes.
double by_events(int ranks, const Seconds& compute, const Seconds& hop) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<double>> begin(n + 1, std::vector<double>(n, 0));  // [step][rank]
  const auto end = [&](std::size_t t, std::size_t r) {
    return begin[t][r] + compute(static_cast<int>(r), static_cast<int>(t));
  };
  const auto arrived = [&](std::size_t t, std::size_t r) {
    const std::size_t from = (r + n - 1) % n;
    return std::max(begin[t][r], begin[t][from]) + hop(static_cast<int>(r), static_cast<int>(t));
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t r = 0; r < n; ++r) {
        double next = end(t, r);
        if (t + 1 < n) next = std::max({next, arrived(t, r), arrived(t, (r + 1) % n)});
        if (next > begin[t + 1][r]) {
          begin[t + 1][r] = next;
          changed = true;
        }
      }
  }
  return *std::max_element(begin[n].begin(), begin[n].end());
}

Seconds noise(double cv, std::uint64_t seed) {
  return [=](int r, int t) { return noise_factor(cv, seed, r, t); };
}

TEST(RingRecurrence, AgreesWithEventsUnderNoise) {
  for (const int ranks : {2, 3, 5, 8})
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const auto hop = [=](int r, int t) { return 0.7 * noise_factor(0.5, seed + 100, r, t); };
      EXPECT_DOUBLE_EQ(forward(ranks, noise(0.3, seed), hop), by_events(ranks, noise(0.3, seed), hop));
    }
}

// ---- mutants: rings that these times reject
// --------------------------------------------------------------------------

/// The next step without one of its waits.
double mutant(int ranks, const Seconds& compute, const Seconds& hop, bool one_buffer, bool infinite_buffers) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<double> begin(n, 0), next(n);
  for (int t = 0; t < ranks; ++t) {
    const auto done = [&](std::size_t r) { return begin[r] + compute(static_cast<int>(r), t); };
    const auto arrival = [&](std::size_t r) {
      const std::size_t from = (r + n - 1) % n;
      const double both = one_buffer         ? std::max(done(r), done(from))
                          : infinite_buffers ? begin[from]
                                             : std::max(begin[r], begin[from]);
      return both + hop(static_cast<int>(r), t);
    };
    for (std::size_t r = 0; r < n; ++r) {
      next[r] = done(r);
      if (t + 1 == ranks) continue;
      next[r] = std::max(next[r], arrival(r));
      if (!infinite_buffers) next[r] = std::max(next[r], arrival((r + 1) % n));
    }
    begin = next;
  }
  return *std::max_element(begin.begin(), begin.end());
}

TEST(RingRecurrenceMutants, OneBufferHidesNothing) {
  EXPECT_DOUBLE_EQ(mutant(5, always(1), always(0.3), false, false), forward(5, always(1), always(0.3)));
  EXPECT_DOUBLE_EQ(mutant(5, always(1), always(0.3), true, false), 5 + 4 * 0.3);
}

TEST(RingRecurrenceMutants, InfiniteBuffersHaveNoBackPressure) {
  const auto hop = [](int, int) { return 2.0; };
  double differing = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    differing += std::abs(mutant(6, noise(0.5, seed), hop, false, true) - forward(6, noise(0.5, seed), hop));
  EXPECT_GT(differing, 0.1);
}

TEST(RingRecurrenceMutants, AHopToItselfIsOneTooMany) {
  EXPECT_DOUBLE_EQ(ring_seconds(5, 5, 5, always(1), always(1.5)), 5 * 1.5);
  EXPECT_NE(ring_seconds(5, 5, 5, always(1), always(1.5)), forward(5, always(1), always(1.5)));
}

// ---- noise -------------------------------------------------------------------------------------------------------

TEST(Noise, HasTheMeanAndTheSpreadThatItPromises) {
  for (const double cv : {0.05, 0.2, 0.5}) {
    double mean = 0, square = 0;
    constexpr int n = 40000;
    for (int i = 0; i < n; ++i) {
      const double x = noise_factor(cv, 7, i / 200, i % 200);
      mean += x / n;
      square += x * x / n;
    }
    EXPECT_NEAR(mean, 1, 5 * cv / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(square - mean * mean), cv, 0.05 * cv);
  }
  EXPECT_EQ(noise_factor(0, 7, 1, 2), 1);
}

/// Mean of the largest of n log-normal factors, by integrating 1 - F(x)^n.
double expected_maximum(int n, double cv) {
  const double sigma = std::sqrt(std::log(1 + cv * cv));
  double sum = 0;
  for (double x = 0.0005; x < 10; x += 0.001)
    sum +=
        0.001 * (1 - std::pow(0.5 * std::erfc(-(std::log(x) + sigma * sigma / 2) / sigma / std::sqrt(2)), n));
  return sum;
}

TEST(RingRecurrence, ABarrierAddsTheMaximumOfAllRanksAndARingDoesNot) {
  struct Case {
    int ranks;
    double cv, ring, barrier;  // of one run of each in Python, with another generator
  };
  for (const Case& a :
       {Case{8, .05, 1.027, 1.064}, Case{8, .2, 1.076, 1.339}, Case{64, .05, 1.013, 1.126},
        Case{64, .2, 1.095, 1.575}, Case{512, .05, 1.008, 1.163}, Case{512, .2, 1.069, 1.794}}) {
    double ring = 0, barrier = 0;
    const int runs = a.ranks == 8 ? 40 : a.ranks == 64 ? 10 : 1;
    for (int i = 0; i < runs; ++i) {
      const auto compute = noise(a.cv, static_cast<std::uint64_t>(i) + 1);
      ring += forward(a.ranks, compute, always(0.3)) / a.ranks / runs;
      barrier += forward(a.ranks, compute, always(0.3), Hops::lockstep) / a.ranks / runs;
    }
    EXPECT_NEAR(barrier, expected_maximum(a.ranks, a.cv), 0.1 * a.cv) << a.ranks << " ranks, cv " << a.cv;
    EXPECT_NEAR(barrier, a.barrier, 0.3 * a.cv);
    EXPECT_NEAR(ring, a.ring, 0.3 * a.cv);
    EXPECT_LT(ring, barrier);
  }
}

TEST(RingRecurrence, TenThousandRanksInSeconds) {
  const auto before = std::chrono::steady_clock::now();
  const double seconds = ring_seconds(
      10000, 10000, 9999, [](int r, int t) { return t <= r ? 1.0 : 0.9; }, [](int, int) { return 0.3; });
  EXPECT_NEAR(seconds, 10000, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - before,
            std::chrono::seconds(60));  // compiled as a test, on a busy machine
}

}  // namespace
}  // namespace ring_attention::plan
