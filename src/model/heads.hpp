/// \file
/// Between the rows of a projection and the heads of attention: split, join, and rotary positions (Su et al., RoFormer,
/// arXiv 2104.09864).
#pragma once

#include "ring_attention/core/tensor.hpp"
#include "ring_attention/core/token_range.hpp"

namespace ring_attention::model {

/// `[batch, 1, tokens, heads * dim]` to `[batch, heads, tokens, dim]`.
template <class T>
[[nodiscard]] Tensor<T> split_heads(View<const T> rows, Index heads);
/// The inverse, and so the adjoint.
template <class T>
[[nodiscard]] Tensor<T> join_heads(View<const T> heads);

/// Turns the pairs of columns (0, 1), (2, 3), ... below `columns` of each head by the angle
/// sign * position * theta^(-2 i / columns) of pair i, in place.
/// \param x      `[batch, heads, tokens, dim]`
/// \param ranges  the positions of the tokens in the whole sequence
/// \param sign    1 forward; -1 backward: the transpose of a rotation turns back
template <class T>
void rotate(View<T> x, const TokenRanges& ranges, Index columns, double theta, int sign);

}  // namespace ring_attention::model
