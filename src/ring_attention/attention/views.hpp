/// \file
/// Views of a caller's arrays to which an attention writes its results.
#pragma once

#include <concepts>
#include <type_traits>

#include "ring_attention/attention/engine.hpp"

namespace ring_attention {

/// Views of the caller's out and lse, to read or to write.
template <class T>
struct ResultViews {
  ResultViews(View<T> of_out, View<T> of_lse) : out(of_out), lse(of_lse) {}
  /// The arrays of a result.
  template <class Result>
    requires std::same_as<std::remove_const_t<Result>, AttentionResult<std::remove_const_t<T>>>
  ResultViews(Result& result) : out(result.out), lse(result.lse) {}  // NOLINT: implicit on purpose

  View<T> out, lse;
};

/// Views of the caller's arrays, to which the gradients are written.
template <class T>
struct GradientViews {
  View<T> q, k, v;
  View<T> bias = {};  ///< like the bias; empty: there is none
};

}  // namespace ring_attention
