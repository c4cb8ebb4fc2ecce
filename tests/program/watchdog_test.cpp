// What a rank reports of itself, and the watchdog and the line of progress that read it.

#include "program/watchdog.hpp"

#include <gtest/gtest.h>

#include <set>

#include "program/progress_line.hpp"

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
  std::set<std::string> names;
  for (int phase = 0; phase <= static_cast<int>(Phase::end); ++phase)
    EXPECT_TRUE(names.insert(name(static_cast<Phase>(phase))).second) << "phase " << phase;
  EXPECT_EQ(names.count(""), 0);
}

TEST(Activity, EnteringAPhaseIsASignOfLife) {
  Activity activity;
  const auto before = activity.beats();
  activity.enter(Phase::compute, 1);
  activity.beat();
  EXPECT_EQ(activity.beats(), before + 2);
}

// Work of more than its limit of 1.6 s, and then a pause of which it sees several polls.
TEST(Watchdog, LetsWorkThatMovesGoOn) {
  Activity activity;
  const Watchdog watchdog(activity, milliseconds(1600), 0);
  for (int i = 0; i < 90; ++i) {
    std::this_thread::sleep_for(milliseconds(20));
    activity.beat();
  }
  std::this_thread::sleep_for(milliseconds(600));
}

TEST(ProgressLine, SaysWhereItIsAndOfHowLong) {
  Activity activity;
  activity.enter(Phase::compute, 3);
  testing::internal::CaptureStderr();
  for (const double expected : {0.0, 90.0}) {
    activity.expect(expected);
    const ProgressLine line(activity, 7, "always"), none(activity, 8, "never");
    std::this_thread::sleep_for(milliseconds(2200));
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.starts_with("\r\033[Kcompute, step 3 of 7 steps, ")) << text;
  EXPECT_NE(text.find(" s\r\033[K"), std::string::npos) << "the first does not know how long: " << text;
  EXPECT_NE(text.find(" s of about 90 s"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\r\033[K")) << text;
  EXPECT_EQ(text.find("8 steps"), std::string::npos) << text;
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
