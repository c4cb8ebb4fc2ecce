// Is each barrier of a kernel needed? Without it some schedule of the emulator must give other numbers.
#pragma once

#include <gtest/gtest.h>

#include "emulator/machine.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::test {

/// Runs `agrees(0)` as the kernel stands, then agrees(1), agrees(2), ... without each of its barriers and waits, until
/// one is wrong or throws: schedules differ, and problems may. There are so many barriers and waits, at least.
template <class Agrees>
void expect_all_needed(const char* kernel, Agrees agrees, std::uint64_t schedules = 12,
                       std::size_t at_least = 2) {
  emulator::options() = {};
  emulator::places().clear();
  ASSERT_TRUE(agrees(0)) << kernel;
  const std::vector<emulator::Place> places = emulator::places();
  EXPECT_GE(places.size(), at_least) << kernel;
  for (const emulator::Place& place : places) {
    bool noticed = false;
    for (std::uint64_t seed = 1; seed <= schedules && !noticed; ++seed) {
      emulator::options() = emulator::Options{seed, place};
      try {
        noticed = !agrees(seed);
      } catch (const Error&) {
        noticed = true;
      }
    }
    EXPECT_TRUE(noticed) << kernel << ": " << place.file << ":" << place.line << " is not missed";
  }
  emulator::options() = {};
}

}  // namespace ring_attention::test
