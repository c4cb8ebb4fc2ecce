/// \file
/// Views of a caller's arrays to which an attention writes its results.
#pragma once

#include <concepts>
#include <type_traits>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/core/memory.hpp"

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

/// Copies results to the caller's arrays, all in `memory`. \param from  out and lse, or q, k, v and bias
template <class T>
void copy_results(const Memory& memory, const auto& from, const ResultViews<T>& to) {
  memory.copy<T>(to.out.elements(), from.out.view().elements());
  memory.copy<T>(to.lse.elements(), from.lse.view().elements());
}
template <class T>
void copy_results(const Memory& memory, const auto& from, const GradientViews<T>& to) {
  memory.copy<T>(to.q.elements(), from.q.view().elements());
  memory.copy<T>(to.k.elements(), from.k.view().elements());
  memory.copy<T>(to.v.elements(), from.v.view().elements());
  memory.copy<T>(to.bias.elements(), from.bias.view().elements());
}

}  // namespace ring_attention
