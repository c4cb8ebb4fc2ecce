/// \file
/// `Hypothesis`: mistakes that may explain what a code returned.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "diagnose/mistakes/mistake.hpp"

namespace ring_attention::diagnose {

/// What one pass may have done. No mistake: it is right.
struct Hypothesis {
  std::vector<const Mistake*> mistakes = {};
  int direction = 1;  ///< of the ring
  /// The gradients of K,V go to the rank whose K,V were used, as autograd sends them, not to the one that should have
  /// been used.
  bool follows_content = false;

  /// An order for maps. (LLVM's library has no <=> of vectors before version 17.)
  friend bool operator<(const Hypothesis& a, const Hypothesis& b) {
    return std::tie(a.mistakes, a.direction, a.follows_content) <
           std::tie(b.mistakes, b.direction, b.follows_content);
  }

  [[nodiscard]] Rules rules() const {
    Rules rules;
    rules.direction = direction;
    for (const Mistake* mistake : mistakes) mistake->edit(rules);
    if (follows_content)
      rules.schedule.push_back([](const Turn&, Steps& steps) {
        for (Step& step : steps) {
          step.dk_to = step.k;
          step.dv_to = step.v;
        }
      });
    return rules;
  }
  [[nodiscard]] bool in_float() const {
    return std::ranges::any_of(mistakes, [](const Mistake* mistake) { return mistake->in_float; });
  }
  [[nodiscard]] bool directed() const {
    return std::ranges::any_of(mistakes, [](const Mistake* mistake) { return mistake->directed; });
  }
  [[nodiscard]] bool loses_digits() const {
    return std::ranges::any_of(mistakes, [](const Mistake* mistake) { return mistake->loses_digits; });
  }
  [[nodiscard]] bool has(const Mistake* mistake) const {
    return std::ranges::find(mistakes, mistake) != mistakes.end();
  }
};

}  // namespace ring_attention::diagnose
