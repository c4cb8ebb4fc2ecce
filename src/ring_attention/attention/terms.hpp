/// \file
/// `TermGradients`: the gradients of the terms of a score besides scale * q k^T.
///
/// What all ranks share (ALiBi, dropout, sinks) is in Scoring. A dense bias (bias.hpp) is an array of a rank,
/// `[batch or 1, heads or 1, queries, any]`; where engines get a view of it, an empty one is none.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// The gradients of the numbers of heads and of the call, each a sum over the rows of all ranks.
struct TermNumbers {
  std::vector<double> sinks = {};  ///< one per query head, or none

  [[nodiscard]] TermNumbers& numbers() { return *this; }
  [[nodiscard]] const TermNumbers& numbers() const { return *this; }
};

inline constexpr std::array number_names{"sink"};

/// use(name, the numbers that each of `of` has for a term, as a span), for every term.
void each_number(const auto& use, auto&... of) { use(number_names[0], std::span(of.sinks)...); }

/// The gradients of all terms.
template <class T>
struct TermGradients : TermNumbers {
  TermGradients(Tensor<T> of_bias = {}, TermNumbers numbers = {})  // NOLINT: implicit
      : TermNumbers(std::move(numbers)), bias(std::move(of_bias)) {}

  Tensor<T> bias;  ///< like the bias
};

}  // namespace ring_attention
