/// \file
/// `diagnose`: what is wrong with the results of a ring, and which mistake explains it.
///
/// 1. The arrays are compared with the right ones. What differs by a convention only is translated, and said.
/// 2. Forward and backward are judged one after the other: the backward of a wrong forward may be right for what that
///    forward returned.
/// 3. Each mistake is simulated. One that explains all rows of all cases up to rounding is named; where several do, all
///    of them are. Then pairs of mistakes.
/// 4. Where none does, the mistakes that explain most are given, with how much.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/search.hpp"

namespace ring_attention::diagnose {

enum class State { absent, right, named, unknown };

/// What is known of one pass.
struct Pass {
  State state = State::absent;
  Precision precision = Precision::float32;    ///< in which it is right, or explained
  Precision returned = Precision::float32;     ///< that of its numbers
  std::vector<Explanation> explanations = {};  ///< of a named one: all that fit, the best first
  std::vector<Explanation> near = {};          ///< of an unknown one: those that explain most
  double right_worst = 0;                      ///< the largest error against right results, in tolerances
};

/// A wrong case by itself, where no mistake explains all cases: codes often take one wrong way for several masks.
struct CaseAlone {
  std::string name;
  Pass forward, backward;
};

struct Diagnosis {
  Pass forward, backward;
  std::vector<CaseAlone> alone;          ///< of those that are explained by themselves
  std::vector<std::string> conventions;  ///< translated, one sentence each
  /// Mistakes that none of these cases and arrays would show.
  std::vector<const Mistake*> not_tested;

  [[nodiscard]] bool right() const { return forward.state <= State::right && backward.state <= State::right; }
  [[nodiscard]] bool explained() const {
    return forward.state != State::unknown && backward.state != State::unknown;
  }
};

struct Options {
  std::vector<const Mistake*> mistakes;  ///< to look for
  bool pairs = true;
  bool lists_not_tested = true;
  std::function<void(const std::string&)> progress = [](const std::string&) {};

  Options();  ///< all mistakes
};

/// \param answers  of at least one case, with at least one array
[[nodiscard]] Diagnosis diagnose(const std::vector<Answer>& answers, const Options& options = {});

/// The mistakes, of those in `options`, that none of these arrays would show.
[[nodiscard]] std::vector<const Mistake*> not_tested_by(std::span<const Evidence> cases,
                                                        const Options& options, Precision precision);

}  // namespace ring_attention::diagnose
