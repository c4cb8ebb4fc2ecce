/// \file
/// `CountedRow`: counts the passes of a softmax over its row.
#pragma once

#include <span>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// A row of scores that counts how often one of them is read.
struct CountedRow {
  std::span<const float> row;
  mutable Index reads = 0;

  [[nodiscard]] std::size_t size() const { return row.size(); }
  float operator[](std::size_t i) const {
    ++reads;
    return row[i];
  }
};

}  // namespace ring_attention
