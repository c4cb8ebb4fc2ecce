/// \file
/// Counter-based random arrays: any rank makes its shard of the same global array, and only that.
#pragma once

#include <cstdint>

#include "ring_attention/core/token_range.hpp"
#include "ring_attention/core/view.hpp"

namespace ring_attention {

/// Which array, and how wild.
struct RandomFill {
  std::uint64_t seed = 1;
  /// Distinguishes q, k, v, dO of one seed.
  std::uint64_t stream = 0;
  /// About one token in `spike_every` is multiplied by `spike`, which drives logits to the hundreds:
  /// an online softmax that is wrong about its maximum shows it there. 0: none.
  Index spike_every = 0;
  double spike = 8.0;
};

/// Element [b, h, position, column] of the global array, uniform in [-sqrt 3, sqrt 3) (variance 1).
/// A pure function of its arguments: the same on every machine, rank and order of evaluation.
[[nodiscard]] double random_element(const RandomFill& fill, const Shape& global, Index batch, Index head,
                                    Index position, Index column);

/// Fills `shard`, whose tokens stand at `ranges` of the array of shape `global`.
/// \throws Error when the shapes differ in more than seq, or seq is not the ranges' count.
template <class T>
void fill_random(View<T> shard, const RandomFill& fill, const Shape& global, const TokenRanges& ranges);

/// Fills a whole array.
template <class T>
void fill_random(View<T> array, const RandomFill& fill) {
  fill_random(array, fill, array.shape(), whole(array.shape().seq));
}

}  // namespace ring_attention
