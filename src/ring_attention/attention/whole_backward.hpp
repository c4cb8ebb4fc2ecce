/// \file
/// `whole_backward`: all gradients of a rank that has every query and key, by any engine.
#pragma once

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/attention/sink_gradient.hpp"

namespace ring_attention {

/// The gradients of all arrays, terms and numbers. `engine` is a new backward engine with `scoring`.
template <class T>
[[nodiscard]] Gradients<T> whole_backward(auto engine, const Scoring& scoring,
                                          const BackwardInputs<T>& forward, View<const T> k,
                                          View<const T> v) {
  Gradients<T> gradients{{}, Tensor<T>(k.shape()), Tensor<T>(v.shape())};
  engine.begin(forward, whole(forward.q.shape().seq));
  engine.accumulate({k, v, whole(k.shape().seq)}, {gradients.k, gradients.v});
  gradients.q = engine.finish();
  gradients.terms() = engine.term_gradients();
  gradients.sinks = sink_gradient(forward, scoring.sinks);
  return gradients;
}

}  // namespace ring_attention
