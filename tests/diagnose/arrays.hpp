/// \file
/// `Arrays`: what one attention hands back, the right one or a wrong one.
#pragma once

#include <array>
#include <string>

#include "ring_attention/core/tensor.hpp"

namespace ring_attention::diagnose {

/// What the attention under test may hand back.
enum class Array { out, lse, dq, dk, dv };

inline constexpr std::array all_arrays{Array::out, Array::lse, Array::dq, Array::dk, Array::dv};
inline constexpr std::array of_forward{Array::out, Array::lse};
inline constexpr std::array of_backward{Array::dq, Array::dk, Array::dv};

/// "out", "lse", "dq", "dk", "dv": also the names of the files.
[[nodiscard]] inline std::string name(Array array) {
  constexpr std::array names{"out", "lse", "dq", "dk", "dv"};
  return names.at(static_cast<std::size_t>(array));
}

/// Whole arrays in the order of positions: out, dq `[1, heads, tokens, dim]`, lse `[1, heads, tokens, 1]`, dk, dv
/// `[1, kv_heads, tokens, dim]`. One of size 0 is not there.
class Arrays {
 public:
  [[nodiscard]] Tensor<double>& operator[](Array array) { return arrays_[static_cast<std::size_t>(array)]; }
  [[nodiscard]] const Tensor<double>& operator[](Array array) const {
    return arrays_[static_cast<std::size_t>(array)];
  }
  [[nodiscard]] bool has(Array array) const { return (*this)[array].size() > 0; }
  [[nodiscard]] bool has_any(const auto& arrays) const {
    return std::ranges::any_of(arrays, [&](Array array) { return has(array); });
  }

 private:
  std::array<Tensor<double>, 5> arrays_;
};

}  // namespace ring_attention::diagnose
