/// \file
/// `--check` of dK and dV where a sequence is too long for the whole reference: some keys, and all queries.
#pragma once

#include "program/run/check.hpp"

namespace ring_attention {

/// About as many of a rank's keys, spread evenly over each of its ranges.
inline constexpr Index check_sample_keys = 64;

/// Some keys of a rank: where they are in the sequence, and in the rank's arrays.
struct SampledKeys {
  TokenRanges ranges;
  std::vector<Index> rows;

  explicit SampledKeys(const TokenRanges& keys);
};

/// dK and dV of some keys of one KV head, [1, 1, keys, dim] (dV: value_dim), and the sizes that tolerances need.
struct KeyGradients {
  Tensor<double> k, v;
  double magnitude_k = 0, magnitude_v = 0;
  /// Squares as in ReferenceGradients, [1, 1, keys, 1]. What the errors of other keys add to `inputs` is not known; they are
  /// taken to add as much as the key's own.
  Tensor<double> sizes_k = {}, sizes_v = {}, inputs_k = {}, inputs_v = {};
};

/// What all queries of all ranks give for `keys`, which are the same on all ranks: the readable backward in double, with the
/// run's own lse and out. (Those need all keys of a query, and are checked by themselves for some rows.) Collective.
/// \param scoring  of these query heads; without a bias
template <class T>
[[nodiscard]] KeyGradients key_gradients(const Communicator& comm, const RankResults<T>& results,
                                         const Scoring& scoring, Index batch, const Interval& heads,
                                         const KeyValue<double>& keys, Activity& activity);

}  // namespace ring_attention
