/// \file
/// `Dropout`: which probabilities are dropped, as a function of positions.
///
/// Dropout follows the softmax: O = (F * P) V with the factor F = 0 for a dropped pair and 1 / (1 - p) for a kept one.
/// m, l and lse are those of P, which is not dropped. Backward: dV = (F * P)^T dO and dS = P * (F * dO V^T - delta);
/// delta = rowsum(dO * O) as before. A dropped pair has dS = -P delta, which is not 0.
/// Source: Srivastava et al., Dropout, JMLR 15 (2014).
///
/// A pair is kept or dropped by a hash of seed, step, layer, batch, head and the two positions: no mask in memory, no
/// state of a generator, any order. So the mask is the same for every number of ranks, placement, tile, instruction
/// set, number of threads and device. The hash is weaker than Philox and not cryptographic; tests measure its mean and
/// the correlation of neighbours.
#pragma once

#include <cstdint>

#include "ring_attention/core/index.hpp"

namespace ring_attention {

/// 64 bits of a query: SplitMix64 of all but the key.
struct DropoutRow {
  std::uint32_t low, high;
};

/// Dropout of the probabilities of a call. The default drops nothing.
struct Dropout {
  double probability = 0;  ///< of a pair to be dropped: valid() from 0 to below 1
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  ///< of the training: each has another mask
  Index layer = 0;
  Index first_batch = 0;  ///< what batch 0 of the arrays is in the whole batch
  Index first_head = 0;   ///< what head 0 of the arrays is among the heads of the layer

  [[nodiscard]] bool valid() const { return probability >= 0 && threshold() >= 1; }
  [[nodiscard]] bool drops() const { return threshold() < std::uint64_t{1} << 32U; }

  /// A pair is kept when its word is below this: floor((1 - p) 2^32), 1 .. 2^32.
  [[nodiscard]] std::uint64_t threshold() const {
    return probability < 1 ? static_cast<std::uint64_t>((1 - probability) * 0x1p32) : 0;
  }
  /// 1 over the probability that a pair is kept, the one that the threshold gives.
  [[nodiscard]] double scale() const { return 0x1p32 / static_cast<double>(threshold()); }

  /// The row of a query. `batch` and `head` count in the arrays; `query` is a position in the whole sequence.
  [[nodiscard]] DropoutRow row(Index batch, Index head, Index query) const;
  /// Is the pair of this row and the key at position `key` kept?
  [[nodiscard]] bool keeps(const DropoutRow& row, Index key) const;
};

}  // namespace ring_attention
