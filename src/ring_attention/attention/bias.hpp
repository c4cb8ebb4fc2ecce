/// \file
/// A dense bias: s = scale * q.k + bias, one number a pair.
///
/// `[batch or 1, heads or 1, queries, keys]`. The rows are the queries of a rank, in the order of its memory. The
/// columns are all keys of the sequence, in the order of their positions, whatever the placement of the keys. -inf
/// hides a key from a query. An extent of 1 broadcasts.
///
/// dBias = dS, like the bias, summed over what broadcasts. All pairs of a row are on the rank of its query, so the
/// gradient needs no message. Memory: queries * keys numbers a rank, so S^2 / N where K,V take S / N.
#pragma once

#include <algorithm>

#include "ring_attention/core/view.hpp"

namespace ring_attention {

/// The row of a query: of a bias, or of its gradient.
template <class T>
[[nodiscard]] T* bias_row(const View<T>& bias, Index batch, Index head, Index query) {
  return bias.row(std::min(batch, bias.shape().batch - 1), std::min(head, bias.shape().heads - 1), query)
      .data();
}

}  // namespace ring_attention
