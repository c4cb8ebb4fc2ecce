/// \file
/// `GradientAccumulator`: how dK and dV lie in memory while ranks add to them.
#pragma once

#include <functional>
#include <memory>

#include "ring_attention/core/memory.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// dK,dV are added as the numbers that they are, or as rows of exact sums (exact/sum.hpp).
struct GradientAccumulator {
  std::shared_ptr<const Memory> memory;  ///< whose add() joins them
  Index dim;                             ///< numbers or words a row
  /// Rounds rows of sums, `[batch, heads, seq, this->dim]`, to numbers; empty: they are numbers.
  std::function<Tensor<float>(View<const float>)> rounded = {};
};

}  // namespace ring_attention
