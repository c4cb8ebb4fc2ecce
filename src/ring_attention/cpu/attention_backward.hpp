/// \file
/// `attention_backward`: all gradients of a whole attention, by the fast engine.
#pragma once

#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/cpu/backward.hpp"

namespace ring_attention {

/// Single device: begin, one accumulate, finish.
template <class T>
[[nodiscard]] Gradients<T> attention_backward(const BackwardInputs<T>& forward, View<const T> k,
                                              View<const T> v, const Scoring& scoring,
                                              const CpuOptions& options = {}) {
  Gradients<T> gradients{{}, Tensor<T>(k.shape()), Tensor<T>(v.shape())};
  CpuBackward<T> engine(scoring, options);
  engine.begin(forward, whole(forward.q.shape().seq));
  engine.accumulate({k, v, whole(k.shape().seq)}, {gradients.k, gradients.v});
  gradients.q = engine.finish();
  gradients.terms() = engine.term_gradients();
  gradients.sinks = sink_gradient(forward, scoring.sinks);
  return gradients;
}

}  // namespace ring_attention
