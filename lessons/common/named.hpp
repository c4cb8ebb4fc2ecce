/// \file
/// `name_mistake`: says which known mistake a function of an exercise has, by the numbers that it gives.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/lesson.hpp"

namespace ring_attention {

/// The functions of an exercise, and what each gives for some arguments. One that uses another comes after it.
using NumbersOf = std::vector<std::pair<std::string, std::vector<double>>>;

struct Named {
  const char* says;
  NumbersOf gives;
};

/// Equal but for rounding; a NaN equals a NaN.
[[nodiscard]] inline bool same_numbers(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) {
    if (!std::isfinite(x) || !std::isfinite(y)) return x == y || (std::isnan(x) && std::isnan(y));
    return std::abs(x - y) <= 1e-5 * std::max(std::abs(x), std::abs(y));
  });
}

/// Says which mistake has the numbers of the first function that is wrong: the others may use it. exercise.sh shows the line.
/// \param known  the first is right
inline void name_mistake(const Lesson& lesson, const NumbersOf& got, const std::vector<Named>& known) {
  const auto same = [](const auto& a, const auto& b) { return same_numbers(a.second, b.second); };
  const auto wrong = std::ranges::mismatch(got, known.front().gives, same).in1;
  if (wrong == got.end()) return;
  const auto named = std::ranges::find_if(
      known, [&](const Named& one) { return std::equal(got.begin(), wrong + 1, one.gives.begin(), same); });
  if (named != known.end())
    lesson.say("  mistake  `" + wrong->first + "` gives the numbers of this mistake: " + named->says);
}

}  // namespace ring_attention
