/// \file
/// `blockwise_backward`: all gradients of a whole attention, by the readable engine.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/attention/whole_backward.hpp"

namespace ring_attention {

/// The gradients of all arrays, terms and numbers of one rank that has every query and key.
/// \param block  queries and keys in a tile
template <class T>
[[nodiscard]] Gradients<T> blockwise_backward(const BackwardInputs<T>& forward, View<const T> k,
                                              View<const T> v, const Scoring& scoring, Index block = 64) {
  return whole_backward(BlockwiseBackward<T>(scoring, block), scoring, forward, k, v);
}

}  // namespace ring_attention
