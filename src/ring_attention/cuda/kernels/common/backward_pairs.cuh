/// \file
/// What the tensor-core kernels of the backward share: the tile of keys that a block owns, and p of a pair.
#pragma once

#include "ring_attention/cuda/kernels/common/visibility.cuh"
#include "ring_attention/cuda/keys.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {

/// A tile of `keys` keys of one range; first_key is an index into the shard.
struct KeyTile {
  int range, first_key, keys;

  /// Tile `number` of `width` keys, numbered over all ranges.
  __device__ KeyTile(const AttentionTask& task, int number, int width) : range(0) {
    for (;; ++range) {
      const int tiles = static_cast<int>((task.range[range].tokens.count + width - 1) / width);
      if (number < tiles) break;
      number -= tiles;
    }
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

/// lse in units of log 2; +inf instead of -inf, so that p becomes 0.
__device__ inline float lse_of(const BackwardTask& task, Index row) {
  const float lse = task.lse[row];
  return lse == -infinity ? infinity : lse * log2_e;
}

/// A position for the bias, relative to the first key: exact up to 2^24 tokens.
__device__ inline float from_first_key(const AttentionTask& task, Index position) {
  return static_cast<float>(position - task.range[0].tokens.begin);
}

/// What p and ds need of `rows` queries of a head, in shared memory.
template <int rows>
struct Statistics {
  float lse[rows];  ///< see lse_of
  float delta[rows];
  float position[rows];  ///< see from_first_key; only if there is a bias
};

/// Computes p for the pairs of a tile of queries and a tile of keys.
struct Pairs {
  float scale, slope;  ///< in units of log 2
  bool unmasked;       ///< every pair is visible, and there is no bias
  int first_key;
  float position, stride;  ///< the position of the first key, and the distance to the next

  /// p from the product q k^T of a query and key `key` of the tile, without and with a mask or a bias. `visible` has
  /// the keys of the range that each query sees.
  template <int rows>
  [[nodiscard]] __device__ __forceinline__ float unmasked_weight(const Statistics<rows>& of, int query,
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

/// \param unmasked  every pair of the tile is visible
__device__ inline Pairs pairs_of(const AttentionTask& task, int range, int head, int first_key,
                                 bool unmasked) {
  const bool biased = task.alibi_slope != nullptr;
  const auto& [tokens, first] = task.range[range];
  return {task.scale * log2_e,
          biased ? log2_e * task.alibi_slope[head] : 0,
          unmasked && !biased,
          first_key,
          from_first_key(task, tokens.begin + (first_key - first) * tokens.stride),
          static_cast<float>(tokens.stride)};
}

}  // namespace ring_attention::cuda
