/// \file
/// One layer of the transformer, forward and backward: x -> norm -> q, k, v -> rotary positions -> attention -> wo -> + x
/// -> norm -> feed-forward -> +.
///
/// Activation checkpoint: x, out and lse are kept. The backward computes norms, projections and feed-forward again, but
/// not attention, which is the part that grows with the square of the length (DistFlashAttn, arXiv 2310.03294).
#pragma once

#include "model/gradient_sum.hpp"
#include "model/rank_context.hpp"

namespace ring_attention::model {

/// The parameters of a layer on a rank. Shapes: `[1, 1, rows, columns]`.
template <class T>
struct LayerParameters {
  LayerParameters(const ParameterLayout& layout, std::span<T> flat);

  View<T> norm_1, wq, wk, wv, wo, norm_2, w1, w2;
};

/// What the backward needs of a layer.
template <class T>
struct Checkpoint {
  Tensor<T> x;                  ///< `[batch, 1, tokens, width]`
  AttentionResult<T> attended;  ///< out, lse of this rank's heads and tokens
};

/// How a layer computes, besides its parameters.
struct LayerOptions {
  ModelShape shape;
  Scoring scoring;    ///< of this rank's heads
  Index chunk = 256;  ///< rows of the feed-forward part at a time
};

/// Collective over the mesh, as layer_backward.
/// \param x  `[batch, 1, tokens, width]`, the same bits on all ranks of the tensor group; kept in `checkpoint`
/// \returns the output, like x
template <class T>
[[nodiscard]] Tensor<T> layer_forward(const LayerOptions& options, const RankContext<T>& place,
                                      const LayerParameters<const T>& weights, Tensor<T> x,
                                      Checkpoint<T>& checkpoint);

/// Adds the gradients of this rank's tokens to `gradients`.
/// \param grad_z  of the output
/// \returns the gradient of x
template <class T>
[[nodiscard]] Tensor<T> layer_backward(const LayerOptions& options, const RankContext<T>& place,
                                       const LayerParameters<const T>& weights,
                                       const Checkpoint<T>& checkpoint, Tensor<T> grad_z,
                                       GradientSums<T>& gradients);

}  // namespace ring_attention::model
