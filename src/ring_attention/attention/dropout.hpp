/// \file
/// `Dropout`: which probabilities are dropped, as a function of positions.
///
/// Dropout follows the softmax: O = (F * P) V with the factor F = 0 for a dropped pair and 1 / (1 - p) for a kept one.
/// m, l and lse are those of P, before the dropout. Backward: dV = (F * P)^T dO and dS = P * (F * dO V^T - delta);
/// delta = rowsum(dO * O) as before. A dropped pair has dS = -P delta, which is not 0.
/// Source: Srivastava et al., Dropout, JMLR 15 (2014).
///
/// A hash of seed, step, layer, batch, head and the two positions decides whether a pair is kept. This needs no mask in
/// memory and no state of a generator, and works in any order. So the mask is the same for every number of ranks, placement,
/// tile, instruction set, number of threads and device. The hash is weaker than Philox and not cryptographic; tests measure
/// its mean and the correlation of neighbours.
#pragma once

#include <cstdint>

#include "ring_attention/core/index.hpp"

namespace ring_attention {

/// 64 bits of a query: SplitMix64 of everything except the key.
struct DropoutRow {
  std::uint32_t low, high;
};

/// Dropout of the probabilities of a call. The default drops nothing.
struct Dropout {
  double probability = 0;  ///< that a pair is dropped; valid() from 0 to below 1
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  ///< of the training: each step has a different mask
  Index layer = 0;
  Index first_batch = 0;  ///< the index in the whole batch of the arrays' batch 0
  Index first_head = 0;   ///< the index in the layer of the arrays' head 0

  [[nodiscard]] bool valid() const { return probability >= 0 && threshold() >= 1; }
  [[nodiscard]] bool drops() const { return threshold() < std::uint64_t{1} << 32U; }

  /// A pair is kept when its word is below this: floor((1 - p) 2^32), 1 .. 2^32.
  [[nodiscard]] std::uint64_t threshold() const {
    return probability < 1 ? static_cast<std::uint64_t>((1 - probability) * 0x1p32) : 0;
  }
  /// 1 divided by the probability that a pair is kept, as the threshold gives it.
  [[nodiscard]] double scale() const { return 0x1p32 / static_cast<double>(threshold()); }

  /// The row of a query. `batch` and `head` are indices in the arrays; `query` is a position in the whole sequence.
  [[nodiscard]] DropoutRow row(Index batch, Index head, Index query) const;
  /// Is the pair of this row and the key at position `key` kept?
  [[nodiscard]] bool keeps(const DropoutRow& row, Index key) const;
};

}  // namespace ring_attention
