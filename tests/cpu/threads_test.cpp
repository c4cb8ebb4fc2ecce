#include "ring_attention/cpu/threads.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ring_attention {
namespace {

TEST(Threads, EveryTaskIsDoneOnce) {
  for (const int threads : {1, 2, 5})
    for (const Index tasks : {0, 1, 3, 100}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(tasks));
      for_each_task(tasks, threads, [&](Index task, int worker) {
        EXPECT_TRUE(worker >= 0 && worker < threads);
        ++done[static_cast<std::size_t>(task)];
      });
      for (const auto& times : done) EXPECT_EQ(times, 1);
    }
}

TEST(Threads, WorkerZeroIsTheCallerAndOneThreadStartsNoOther) {
  const auto caller = std::this_thread::get_id();
  for_each_task(50, 1, [&](Index, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  for_each_task(50, 3,
                [&](Index, int worker) { EXPECT_EQ(worker == 0, std::this_thread::get_id() == caller); });
}

TEST(Threads, WhatTheCallerThrowsArrivesAfterAllHaveStopped) {
  std::atomic<int> running{0};
  std::atomic<bool> arrived{false};
  const auto work = [&](Index, int worker) {
    if (worker == 0) {
      arrived = true;
      throw std::runtime_error("stop");
    }
    ++running;
    while (!arrived) std::this_thread::yield();  // otherwise the others might do all tasks
    --running;
  };
  EXPECT_THROW(for_each_task(1000, 4, work), std::runtime_error);
  EXPECT_EQ(running, 0);
}

TEST(Threads, NoTaskBeginsAfterAFailure) {
  std::atomic<int> begun{0};
  std::atomic<bool> failed{false};
  const auto work = [&](Index, int worker) {
    ++begun;
    if (worker == 0) {
      failed = true;
      throw std::runtime_error("stop");
    }
    while (!failed) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  EXPECT_THROW(for_each_task(1000, 2, work), std::runtime_error);
  EXPECT_LT(begun, 100);
}

TEST(Threads, WhatAnotherWorkerThrowsArrivesToo) {
  const auto work = [](Index task, int) {
    if (task == 7) throw std::runtime_error("stop");
  };
  for (const int threads : {1, 2, 4}) EXPECT_THROW(for_each_task(8, threads, work), std::runtime_error);
}

TEST(Threads, ThereIsACore) { EXPECT_GE(usable_cores(), 1); }

}  // namespace
}  // namespace ring_attention
