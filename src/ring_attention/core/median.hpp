/// \file
/// `median`: of measurements, whose mean a disturbed one would pull.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// The middle value; of an even number the mean of the two in the middle. \throws Error when there is none
[[nodiscard]] inline double median(std::vector<double> values) {
  require(!values.empty(), "median of nothing");
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace ring_attention
