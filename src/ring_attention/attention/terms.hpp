/// \file
/// The terms of a score besides scale * q k^T: the values in which they pass through layers as a whole.
///
/// What all ranks share (ALiBi, dropout, sinks) is in Scoring. The arrays of a rank are `TermArrays`: each has a row for
/// every query of the rank, `[batch or 1, heads or 1, queries, any]`, and an extent of 1 broadcasts. Their gradients, and
/// those of the numbers of heads, are `TermGradients`. Only code that computes with a term names a member; all other code
/// checks, moves and cuts every array with each_term().
#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// One A for each array: a view, a tensor, a shape or a name.
template <class A>
struct TermArrays {
  A bias = {};  ///< the dense bias (bias.hpp)
};

/// use(what each of `of` has for a term), for every term; the results, unless there are none.
template <class... Of>
auto each_term(const auto& use, Of&&... of) {
  using Result = decltype(use(std::forward<Of>(of).bias...));
  if constexpr (std::is_void_v<Result>)
    use(std::forward<Of>(of).bias...);
  else
    return TermArrays<Result>{use(std::forward<Of>(of).bias...)};
}

inline constexpr TermArrays<const char*> term_names{"bias"};

/// The shape of each array over all ranks, whose seq is ignored; none without the term. The array of a rank does not say
/// whether there is a term: it may have no row.
using TermShapes = TermArrays<std::optional<Shape>>;

/// The arrays of some queries, which belong to the caller; an empty one: no such term.
template <class T>
struct Terms : TermArrays<View<const T>> {
  Terms() = default;
  /// A bias alone.
  template <std::convertible_to<View<const T>> A>
  Terms(const A& only) : TermArrays<View<const T>>{only} {}  // NOLINT: implicit on purpose
  template <std::convertible_to<View<const T>> A>
  Terms(const TermArrays<A>& arrays)  // NOLINT
      : TermArrays<View<const T>>(each_term([](const A& array) -> View<const T> { return array; }, arrays)) {}
};

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
struct TermGradients : TermArrays<Tensor<T>>, TermNumbers {
  TermGradients(TermArrays<Tensor<T>> arrays = {}, TermNumbers numbers = {})  // NOLINT: implicit
      : TermArrays<Tensor<T>>(std::move(arrays)), TermNumbers(std::move(numbers)) {}
};

}  // namespace ring_attention
