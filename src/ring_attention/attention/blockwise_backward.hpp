/// \file
/// `blockwise_backward`: all gradients of a whole attention, by the readable engine.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/attention/sink_gradient.hpp"

namespace ring_attention {

/// The gradients of all arrays, terms and numbers of one rank that has every query and key.
/// \param block  queries and keys in a tile
template <class T>
[[nodiscard]] Gradients<T> blockwise_backward(const BackwardInputs<T>& forward, View<const T> k,
                                              View<const T> v, const Scoring& scoring, Index block = 64) {
  Gradients<T> gradients{{}, Tensor<T>(k.shape()), Tensor<T>(v.shape())};
  BlockwiseBackward<T> engine(scoring, block);
  engine.begin(forward, whole(forward.q.shape().seq));
  engine.accumulate({k, v, whole(k.shape().seq)}, {gradients.k, gradients.v});
  gradients.q = engine.finish();
  gradients.terms() = engine.term_gradients();
  gradients.sinks = sink_gradient(forward, scoring.sinks);
  return gradients;
}

}  // namespace ring_attention
