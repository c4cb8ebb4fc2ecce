// What a fuzzer has found: a file with one input a line, in hexadecimal, and each input with some of its bytes changed.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "support/cases.hpp"

namespace ring_attention::test {

/// Calls `target` with each seed of a file below tests, and with RING_ATTENTION_MUTANTS changes of each.
inline void replay_seeds(const std::string& file, int (*target)(const std::uint8_t*, std::size_t)) {
  const Index mutants = from_environment("RING_ATTENTION_MUTANTS", 200);
  const char* source = std::getenv("RING_ATTENTION_SOURCE");
  ASSERT_NE(source, nullptr) << "the folder of the source";
  std::ifstream lines(std::string(source) + "/tests/" + file);
  std::mt19937_64 random(1);
  std::size_t seeds = 0;
  for (std::string line; std::getline(lines, line); ++seeds) {
    std::string seed;
    for (std::size_t i = 0; i + 1 < line.size(); i += 2)
      seed += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
    for (Index mutant = 0; mutant <= mutants; ++mutant) {
      std::string input = seed;
      for (Index change = 0; mutant > 0 && !input.empty() && change < 1 + mutant % 3; ++change) {
        const std::size_t place = random() % input.size();
        if (random() % 4 == 0)
          input.erase(place, 1 + random() % 4);
        else
          input[place] = static_cast<char>(random());
      }
      const std::vector<std::uint8_t> exact(input.begin(), input.end());  // a sanitizer sees a byte too far
      target(exact.data(), exact.size());
    }
  }
  EXPECT_GT(seeds, 10U) << "too few lines in " << file;
}

}  // namespace ring_attention::test
