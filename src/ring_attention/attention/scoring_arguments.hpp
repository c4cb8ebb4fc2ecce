/// \file
/// A Scoring and the arrays of its terms as arguments of a call: what is wrong with them, and their texts.
#pragma once

#include <string>

#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/attention/terms.hpp"

namespace ring_attention {

/// What is wrong with its scale, softcap and dropout: not finite, or 0 in the type; empty: nothing. \param largest  finite score
[[nodiscard]] std::string fault_of_numbers(const Scoring& scoring, double largest);

/// What is wrong with the numbers of a scoring for this number of heads; empty: nothing. \param largest  finite score
[[nodiscard]] std::string fault_of(const Scoring& scoring, Index heads, double largest);

/// One line for each number, and for each term: equal texts mean equal scorings and the same terms.
[[nodiscard]] std::string text_of(const Scoring& scoring, const std::optional<Shape>& bias);

}  // namespace ring_attention
