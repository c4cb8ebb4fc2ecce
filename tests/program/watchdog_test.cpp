// What a rank reports of itself, and the watchdog that reads it.

#include "program/watchdog.hpp"

#include <gtest/gtest.h>

namespace ring_attention::test {
namespace {

using std::chrono::milliseconds;

TEST(Activity, DescribesPhaseStepAndPeer) {
  Activity activity;
  EXPECT_EQ(activity.describe(), "start");
  activity.enter(Phase::exchange, 2, 1);
  EXPECT_EQ(activity.describe(), "exchange, step 2, peer 1");
  activity.enter(Phase::compute, 0);
  EXPECT_EQ(activity.describe(), "compute, step 0");
  activity.enter(Phase::write);
  EXPECT_EQ(activity.describe(), "writing the output");
}

TEST(Activity, EveryPhaseHasAName) {
  for (const Phase phase : {Phase::start, Phase::read, Phase::agree, Phase::compute, Phase::exchange,
                            Phase::drain, Phase::check, Phase::write})
    EXPECT_STRNE(name(phase), "unknown");
}

TEST(Activity, EnteringAPhaseIsASignOfLife) {
  Activity activity;
  const auto before = activity.beats();
  activity.enter(Phase::compute, 1);
  activity.beat();
  EXPECT_EQ(activity.beats(), before + 2);
}

TEST(Watchdog, LetsWorkThatMovesGoOn) {
  Activity activity;
  const Watchdog watchdog(activity, milliseconds(800), 0);
  for (int i = 0; i < 60; ++i) {  // 1.2 s in all
    std::this_thread::sleep_for(milliseconds(20));
    activity.beat();
  }
}

TEST(Watchdog, GoesWithoutDelayWhenTheWorkIsDone) {
  const auto begin = std::chrono::steady_clock::now();
  {
    Activity activity;
    const Watchdog watchdog(activity, std::chrono::seconds(600), 0);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(WatchdogDeathTest, EndsAProcessInWhichNothingMovesAndSaysWhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stand_still = [] {
    Activity activity;
    const Watchdog watchdog(activity, milliseconds(200), 2);
    activity.enter(Phase::exchange, 1, 0);
    std::this_thread::sleep_for(std::chrono::seconds(60));
  };
  EXPECT_EXIT(stand_still(), testing::ExitedWithCode(3),
              "\\[rank 2\\] error: nothing moved for 0\\.2 s: exchange, step 1, peer 0");
}

}  // namespace
}  // namespace ring_attention::test
