/// \file
/// Views of a caller's arrays to which an attention writes its results.
#pragma once

#include "ring_attention/attention/terms.hpp"

namespace ring_attention {

/// Views of the caller's out and lse, to read or to write.
template <class T>
struct ResultViews {
  View<T> out, lse;
};

/// Views of the caller's arrays, to which the gradients are written.
template <class T>
struct GradientViews {
  View<T> q, k, v;
  View<T> bias = {};  ///< like the bias; empty: there is none

  [[nodiscard]] TermArrays<View<T>> terms() const { return {bias}; }
};

}  // namespace ring_attention
