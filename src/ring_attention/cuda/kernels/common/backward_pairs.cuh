/// \file
/// What the backward kernels of the tensor cores share: which keys a block owns, and what makes p and ds of a pair.
#pragma once

#include "ring_attention/cuda/kernels/common/extent.cuh"
#include "ring_attention/cuda/keys.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {

/// A tile of keys of one range: `keys` of them, from first_key on, as they lie in the shard.
struct TileOfKeys {
  int range, first_key, keys;

  /// The number-th tile of `width` keys, over all ranges.
  __device__ TileOfKeys(const AttentionTask& task, int number, int width) : range(0) {
    for (int tiles = 0;
         number >= (tiles = static_cast<int>((task.range[range].tokens.count + width - 1) / width)); ++range)
      number -= tiles;
    first_key = static_cast<int>(task.range[range].first) + number * width;
    keys = min(width, static_cast<int>(task.range[range].tokens.count) - number * width);
  }
};

inline int tiles_of_keys(const AttentionTask& task, int width) {
  int tiles = 0;
  for (int range = 0; range < task.ranges; ++range)
    tiles += static_cast<int>((task.range[range].tokens.count + width - 1) / width);
  return tiles;
}

/// lse in units of log 2, and +inf where p is to be 0.
__device__ inline float lse_of(const BackwardTask& task, Index row) {
  const float lse = task.lse[row];
  return lse == -infinity ? infinity : lse * log2_e;
}

/// A position as the bias wants it: from the first key's, exact up to 2^24 tokens.
__device__ inline float from_first_key(const AttentionTask& task, Index position) {
  return static_cast<float>(position - task.range[0].tokens.begin);
}

/// What p and ds ask of `rows` queries of a head, in shared memory.
template <int rows>
struct Statistics {
  float lse[rows];  ///< as lse_of
  float delta[rows];
  float position[rows];  ///< as from_first_key; only where there is a bias
};

/// What makes p of a pair of a tile of queries and a tile of keys.
struct Pairs {
  float scale, slope;  ///< in units of log 2
  bool plain;          ///< every pair is visible, and there is no bias
  int first_key;
  float position, stride;  ///< of the first key, and to the next

  /// p of the product q k^T of a query and the `key`-th of the keys, where all is plain and where it is not. `visible` are
  /// the keys of the range, of each query.
  template <int rows>
  [[nodiscard]] __device__ __forceinline__ float plain_weight(const Statistics<rows>& of, int query,
                                                              float product) const {
    return ex2_approx(product * scale - of.lse[query]);
  }
  template <int rows>
  [[nodiscard]] __device__ __forceinline__ float masked_weight(const Statistics<rows>& of,
                                                               const KeyInterval (&visible)[rows], int query,
                                                               int key, float product) const {
    float s = product * scale;
    if (slope != 0)
      s = fmaf(-slope, fabsf(fmaf(static_cast<float>(key), stride, position) - of.position[query]), s);
    if (first_key + key < visible[query].begin || first_key + key >= visible[query].end) s = -infinity;
    return ex2_approx(s - of.lse[query]);
  }
};

/// \param plain  every pair of the tile is visible
__device__ inline Pairs pairs_of(const AttentionTask& task, int range, int head, int first_key, bool plain) {
  const bool biased = task.alibi_slope != nullptr;
  const auto& [tokens, first] = task.range[range];
  return {task.scale * log2_e,
          biased ? log2_e * task.alibi_slope[head] : 0,
          plain && !biased,
          first_key,
          from_first_key(task, tokens.begin + (first_key - first) * tokens.stride),
          static_cast<float>(tokens.stride)};
}

}  // namespace ring_attention::cuda
