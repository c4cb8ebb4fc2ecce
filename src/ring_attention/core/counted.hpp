/// \file
/// `counted`: a number and its noun.
#pragma once

#include <cstdint>
#include <string>

namespace ring_attention {

/// `1 rank`, `3 ranks`.
[[nodiscard]] inline std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace ring_attention
