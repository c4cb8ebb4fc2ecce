// Is each barrier of a kernel needed? Without it some schedule of the emulator must give other numbers.
#pragma once

#include <gtest/gtest.h>

#include "cuda/emulator/machine.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::test {

/// Runs `agrees` as the kernel stands, then without each of its barriers and waits, on so many schedules.
template <class Agrees>
void expect_all_needed(const char* kernel, Agrees agrees, std::uint64_t schedules = 12) {
  emulator::options() = {};
  emulator::places().clear();
  ASSERT_TRUE(agrees());
  const std::vector<emulator::Place> places = emulator::places();
  EXPECT_FALSE(places.empty());
  for (const emulator::Place& place : places) {
    bool noticed = false;
    for (std::uint64_t seed = 1; seed <= schedules && !noticed; ++seed) {
      emulator::options() = emulator::Options{seed, place};
      try {
        noticed = !agrees();
      } catch (const Error&) {
        noticed = true;
      }
    }
    EXPECT_TRUE(noticed) << kernel << ": " << place.file << ":" << place.line << " is not missed";
  }
  emulator::options() = {};
}

}  // namespace ring_attention::test
