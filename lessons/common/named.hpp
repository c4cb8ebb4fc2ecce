/// \file
/// `names_mistake`: says which known mistake a function of an exercise has, by the numbers that it gives.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/lesson.hpp"

namespace ring_attention {

struct Named {
  const char* says;
  std::vector<double> gives;
};

/// Equal but for rounding; a NaN equals a NaN.
[[nodiscard]] inline bool same_numbers(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) {
    if (!std::isfinite(x) || !std::isfinite(y)) return x == y || (std::isnan(x) && std::isnan(y));
    return std::abs(x - y) <= 1e-5 * std::max(std::abs(x), std::abs(y));
  });
}

/// True if the function is wrong. exercise.sh shows the line, which names the first mistake with these numbers.
inline bool names_mistake(const Lesson& lesson, const std::string& function, const std::vector<double>& got,
                          const std::vector<double>& right, const std::vector<Named>& mistakes) {
  if (same_numbers(got, right)) return false;
  const auto named =
      std::ranges::find_if(mistakes, [&](const Named& one) { return same_numbers(got, one.gives); });
  if (named != mistakes.end())
    lesson.say("  mistake  `" + function + "` gives the numbers of this mistake: " + named->says);
  return true;
}

}  // namespace ring_attention
