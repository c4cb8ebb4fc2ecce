/// \file
/// `median` of measurements: one disturbed measurement hardly changes it.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// The middle value; of an even number of values the mean of the two in the middle. \throws Error without values
[[nodiscard]] inline double median(std::vector<double> values) {
  require(!values.empty(), "median of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace ring_attention
