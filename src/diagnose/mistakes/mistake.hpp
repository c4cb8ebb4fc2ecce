/// \file
/// `Mistake`: a known mistake in a ring. mistakes.tsv lists all of them; an edit of the rules simulates each one.
#pragma once

#include <string>
#include <vector>

#include "diagnose/rules.hpp"

namespace ring_attention::diagnose {

/// In which passes a mistake can be.
enum class Phase {
  both,     ///< a rule that forward and backward share; it may be wrong in one of them only
  forward,  ///< the merge, or what the forward returns
  backward
};

/// One line of mistakes.tsv, and what it does.
struct Mistake {
  std::string id;
  Phase phase = Phase::both;
  bool in_float = false;  ///< shows only in float, and is simulated in it
  std::string says;       ///< the mistake, in one sentence
  std::string look;       ///< where to look
  std::string lesson;     ///< "05", or empty
  std::string
      mutant;  ///< code of this project that makes it: "lesson 05 step-too-few, tests/support OneStepTooFew"
  std::string source;  ///< who made it; or empty
  void (*edit)(Rules&) = nullptr;
  bool directed = false;  ///< does it depend on the way in which parcels travel?
  /// Does it only round sums? Then it is no explanation of anything larger, alone or with other mistakes.
  bool loses_digits = false;
  bool moves_content = false;  ///< are the K,V at hand those of another rank than they should be?

  [[nodiscard]] bool in_forward() const { return phase != Phase::backward; }
  [[nodiscard]] bool in_backward() const { return phase != Phase::forward; }
};

/// In the order of the file; those that results of attention show.
/// \throws Error when a line has no edit, or an edit has no line
[[nodiscard]] const std::vector<Mistake>& all_mistakes();

/// \throws Error for another id
[[nodiscard]] const Mistake& mistake_named(const std::string& id);

}  // namespace ring_attention::diagnose
