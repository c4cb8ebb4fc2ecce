/// \file
/// Conventions in which right results may be written. They are translated and said, not called wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "diagnose/search.hpp"

namespace ring_attention::diagnose {

/// A way to write all arrays, which has to be undone before they can be compared.
struct Convention {
  std::string says;
  std::function<void(const Problem&, Arrays&)> translate;
};

/// Those that may hide under a mistake: tokens in the order of the ranks, lse in base 2.
[[nodiscard]] std::vector<Convention> conventions_for(const Problem& problem);

/// Undoes units in which right lse and right gradients may be: lse in base 2, or of scores without the scale; gradients N
/// times the right ones, or by N; tokens in the order of the ranks. Only where the array is right then.
/// \param known  of the same problems
/// \param said  gets what was found, one sentence each
void translate_units(std::span<const Evidence> known, std::vector<Answer>& answers,
                     std::vector<std::string>& said);

[[nodiscard]] std::vector<Answer> copies(const std::vector<Answer>& answers);

}  // namespace ring_attention::diagnose
