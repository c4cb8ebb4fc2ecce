/// \file
/// `RandomProblem`: one seeded attention problem that any rank makes its own part of.
#pragma once

#include "ring_attention/attention/reference.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/ring/parcel.hpp"

namespace ring_attention {

/// Shapes, scores and a seed; the arrays follow from them. q, k, v are the streams 0, 1, 2 of the seed.
struct RandomProblem {
  Shape q;   ///< [batch, heads, seq, dim], global
  Shape kv;  ///< [batch, kv_heads, keys, dim], global
  Scoring scoring;
  std::uint64_t seed = 1;
  Index spike_every = 0;  ///< see RandomFill

  [[nodiscard]] RandomFill fill(std::uint64_t stream) const { return {seed, stream, spike_every}; }

  template <class T>
  [[nodiscard]] Tensor<T> make(const Shape& global, std::uint64_t stream, const TokenRanges& ranges) const {
    Tensor<T> shard(global.with_seq(count(ranges)));
    fill_random(shard.view(), fill(stream), global, ranges);
    return shard;
  }

  /// The queries at `ranges`.
  template <class T>
  [[nodiscard]] Tensor<T> queries(const TokenRanges& ranges) const {
    return make<T>(q, 0, ranges);
  }
  /// All keys, and all values: for a single device and for the oracle.
  template <class T>
  [[nodiscard]] Tensor<T> keys() const {
    return make<T>(kv, 1, whole(kv.seq));
  }
  template <class T>
  [[nodiscard]] Tensor<T> values() const {
    return make<T>(kv, 2, whole(kv.seq));
  }

  /// The K,V of `rank`, ready to travel.
  template <class T>
  [[nodiscard]] KvParcel<T> parcel(const Placement& placement, int rank) const {
    KvParcel<T> parcel(kv, placement, rank);
    fill_random(parcel.k(), fill(1), kv, placement.ranges(rank));
    fill_random(parcel.v(), fill(2), kv, placement.ranges(rank));
    return parcel;
  }

  /// The oracle for the queries at `ranges`, on the same numbers rounded to T.
  template <class T>
  [[nodiscard]] Reference reference(const TokenRanges& ranges) const {
    return reference_forward(converted<double>(queries<T>(ranges)), converted<double>(keys<T>()),
                             converted<double>(values<T>()), scoring, ranges);
  }

  /// What a correct result in T may be off from `reference`.
  template <class T>
  [[nodiscard]] Tolerance tolerance(const Reference& reference) const {
    return attention_tolerance<T>(kv.seq, reference.max_abs_score, reference.max_abs_value);
  }
};

/// 1 / sqrt(dim), the usual scale.
[[nodiscard]] inline double default_scale(Index dim) { return 1.0 / std::sqrt(static_cast<double>(dim)); }

}  // namespace ring_attention
