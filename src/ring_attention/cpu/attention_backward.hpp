/// \file
/// `attention_backward`: all gradients of a whole attention, by the fast engine.
#pragma once

#include "ring_attention/attention/whole_backward.hpp"
#include "ring_attention/cpu/backward.hpp"

namespace ring_attention {

/// The gradients of all arrays, terms and numbers of one rank that has every query and key.
template <class T>
[[nodiscard]] Gradients<T> attention_backward(const BackwardInputs<T>& forward, View<const T> k,
                                              View<const T> v, const Scoring& scoring,
                                              const CpuOptions& options = {}) {
  return whole_backward(CpuBackward<T>(scoring, options), scoring, forward, k, v);
}

}  // namespace ring_attention
