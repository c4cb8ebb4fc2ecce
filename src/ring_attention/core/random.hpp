/// \file
/// Counter-based random arrays: any rank makes its shard of a global array without the rest.
#pragma once

#include "ring_attention/core/mix.hpp"
#include "ring_attention/core/token_range.hpp"
#include "ring_attention/core/view.hpp"

namespace ring_attention {

/// Seed, stream and spike rate of a random array.
struct RandomFill {
  std::uint64_t seed = 1;
  /// Distinguishes q, k, v, dO of one seed.
  std::uint64_t stream = 0;
  /// About one token in `spike_every` is multiplied by `spike`, so that scores reach hundreds: there an
  /// error in the maximum of an online softmax shows. 0: none.
  Index spike_every = 0;
  double spike = 8.0;
};

/// Element [b, h, position, column] of the global array, uniform in [-sqrt 3, sqrt 3) (variance 1).
/// A pure function of its arguments: the same on every machine, rank and order of evaluation.
[[nodiscard]] double random_element(const RandomFill& fill, const Shape& global, Index batch, Index head,
                                    Index position, Index column);

/// Fills `shard`, whose tokens are at `ranges` of the array of shape `global`.
/// \throws Error when the shapes differ in more than seq, or seq is not the count of the ranges.
template <class T>
void fill_random(View<T> shard, const RandomFill& fill, const Shape& global, const TokenRanges& ranges);

/// Fills a whole array.
template <class T>
void fill_random(View<T> array, const RandomFill& fill) {
  fill_random(array, fill, array.shape(), whole(array.shape().seq));
}

}  // namespace ring_attention
