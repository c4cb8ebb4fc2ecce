/// \file
/// `ModelShape`: the sizes of a transformer; `TensorPart`: the part of it that a rank of tensor parallelism has.
#pragma once

#include "model/mesh.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention::model {

/// A decoder without biases. The answers are the logits of some consecutive tokens, with the embedding as output matrix
/// (tied): logit of class c = n . E[first_class + c] / sqrt(width).
struct ModelShape {
  Index vocabulary = 0;                ///< tokens
  Index first_class = 0, classes = 0;  ///< of the answers
  Index layers = 1;
  Index width = 64;
  Index heads = 2, kv_heads = 2, dim = 32;  ///< of attention; kv_heads divides heads
  Index hidden = 128;                       ///< of the feed-forward part
  Index rotary = 0;                         ///< leading columns of a head that turn with the position; even
  double theta = 1e4;                       ///< of the rotary positions
  /// The second half of the columns embeds the token before. Then one layer of attention finds what follows a token.
  bool token_shift = true;

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

/// \throws InputError unless the sizes belong together
void require_valid(const ModelShape& shape);

/// \throws InputError, which names axes that would do, unless the tensor and ulysses axes can share the heads, and the data
/// axis has a sequence of the batch for each rank
void require_shareable(const ModelShape& shape, const MeshShape& mesh, Index batch);

/// Which heads and hidden numbers a rank of a group of tensor parallelism has (require_shareable). Where ranks outnumber the
/// K,V heads, consecutive ranks have replicas of one.
struct TensorPart {
  /// \param index  0 .. ranks - 1
  TensorPart(const ModelShape& shape, int index, int ranks);

  int index = 0;
  Interval heads, kv_heads, hidden;
  Axis kv_replicas;  ///< the ranks with the same K,V heads, in the group and in the whole mesh
};

}  // namespace ring_attention::model
