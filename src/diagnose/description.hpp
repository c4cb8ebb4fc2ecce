/// \file
/// A problem as the code under test gets it: an entry of cases.json, the case of a function in Python.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "diagnose/problem.hpp"

namespace ring_attention::diagnose {

/// q, k, v, dout, and bias where there is one: whole arrays in the order of positions.
[[nodiscard]] std::vector<std::pair<std::string, const Tensor<double>*>> inputs_of(const Problem& problem);

/// Everything else, as JSON: heads, mask, scale, the tokens of each rank. What a case has not is left out.
[[nodiscard]] std::string description_of(const Problem& problem);

}  // namespace ring_attention::diagnose
