// Two pieces of work on one thread, timed in turn, so that a change of the machine's speed meets both.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "cli/median.hpp"

namespace ring_attention {

inline double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The median of time with over time without.
inline double median_ratio(const std::function<void()>& with, const std::function<void()>& without,
                           int pairs = 15) {
  std::vector<double> ratios;
  for (int i = 0; i < pairs; ++i) {
    const double usual = seconds(without);
    ratios.push_back(seconds(with) / usual);
  }
  return median(ratios);
}

}  // namespace ring_attention
