/// \file
/// The blockwise feed-forward part (Liu, Abbeel, arXiv 2305.19370): relu(norm(y) w1) w2, some tokens at a time.
///
/// Only one chunk of tokens has its hidden numbers in memory, in the backward too, which computes them again.
#pragma once

#include "model/gradient_sum.hpp"

namespace ring_attention::model {

/// The parameters of this part. On a rank of tensor parallelism: some columns of w1 and the rows of
/// w2 that they feed.
template <class T>
struct FeedForward {
  View<T> norm;  ///< `[1, 1, 1, width]`
  View<T> w1;    ///< `[1, 1, width, hidden]`
  View<T> w2;    ///< `[1, 1, hidden, width]`
};

/// relu(norm(y) w1) w2, `[batch, 1, tokens, width]`: summed over the ranks of tensor parallelism it is what is added to y.
/// \param chunk  rows at a time, >= 1; without effect but for rounding. Ignored where gradients are exact sums: a
///     chunk is then a tile
/// Memory besides: chunk (width + hidden) numbers.
template <class T>
[[nodiscard]] Tensor<T> feed_forward(View<const T> y, const FeedForward<const T>& weights, Index chunk,
                                     const RowTiles& rows = {});

/// From the gradient of the sum to the gradients of w1 and w2, which are added to, and that of norm(y), returned: summed
/// over the ranks of tensor parallelism it goes through the norm.
/// Memory besides: chunk (width + 2 hidden) numbers.
template <class T>
[[nodiscard]] Tensor<T> feed_forward_gradient(View<const T> y, const FeedForward<const T>& weights,
                                              View<const T> grad_z, const GradientSum<T>& grad_w1,
                                              const GradientSum<T>& grad_w2, Index chunk,
                                              const RowTiles& rows = {});

}  // namespace ring_attention::model
