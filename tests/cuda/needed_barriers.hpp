// Tests that each barrier of a kernel is needed: without it some schedule of the emulator must give wrong numbers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "emulator/machine.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::test {

/// Runs agrees(0) with the unchanged kernel. Then, for each barrier and wait, runs agrees(1), agrees(2), ... without it
/// until one returns false or throws; each has another schedule, and may have another problem. The kernel must have at
/// least `at_least` barriers and waits. Those in files whose paths do not contain `in_files` are left out, and so are
/// those of `elsewhere`, which an earlier call has found needed.
/// \returns those that are needed
template <class Agrees>
std::vector<emulator::SourceLine> expect_all_needed(const char* kernel, Agrees agrees,
                                                    std::uint64_t schedules = 12, std::size_t at_least = 2,
                                                    std::string_view in_files = "",
                                                    const std::vector<emulator::SourceLine>& elsewhere = {}) {
  emulator::options() = {};
  emulator::places().clear();
  EXPECT_TRUE(agrees(0)) << kernel;
  std::vector<emulator::SourceLine> places = emulator::places();
  std::erase_if(places,
                [&](const auto& place) { return place.file.find(in_files) == std::string_view::npos; });
  EXPECT_GE(places.size(), at_least) << kernel;
  std::erase_if(places,
                [&](const auto& place) { return std::ranges::find(elsewhere, place) != elsewhere.end(); });
  for (const emulator::SourceLine& place : places) {
    bool noticed = false;
    for (std::uint64_t seed = 1; seed <= schedules && !noticed; ++seed) {
      emulator::options() = emulator::Options{seed, place};
      try {
        noticed = !agrees(seed);
      } catch (const Error&) {
        noticed = true;
      }
    }
    EXPECT_TRUE(noticed) << kernel << ": no schedule fails without " << place.file << ":" << place.line;
  }
  emulator::options() = {};
  return places;
}

}  // namespace ring_attention::test
