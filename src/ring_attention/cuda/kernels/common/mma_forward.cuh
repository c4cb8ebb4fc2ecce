/// \file
/// What forward_2_mma.cu keeps in shared memory and in registers, and the work of one warp on a tile of keys.
#pragma once

#include "ring_attention/cuda/kernels/common/mma_tiles.cuh"
#include "ring_attention/cuda/kernels/common/softmax.cuh"

namespace ring_attention::cuda::mma_forward_tiles {

constexpr int warps = 4;
constexpr int queries_of_warp = 32;
constexpr int tile_queries = queries_of_warp * warps;
constexpr int tile_keys = 64;
constexpr int halves = queries_of_warp / 16;  // of a warp's rows: an mma has 16

using QueryVisibility = TileVisibility<tile_queries, queries_of_warp>;

/// What a block works on. It is in shared memory because the registers are full.
struct BlockPlace {
  Index query_row, key_row;  ///< the tile's first row in q and o, the head's first row in k and v
  int first_query;
  float slope;  ///< in units of log 2; 0 if there is no bias
};

template <int columns>
struct SharedLayout {
  static constexpr int q_bytes = 2 * tile_queries * columns;
  static constexpr int k_bytes = 2 * tile_keys * columns;
  static constexpr int stage_bytes = 2 * k_bytes;  // K, then V
  static constexpr int bytes =
      q_bytes + 2 * stage_bytes + static_cast<int>(sizeof(QueryVisibility) + sizeof(BlockPlace));

  SwizzledTile<columns> q;
  unsigned stages;
  QueryVisibility* visibility;
  BlockPlace* place;

  __device__ explicit SharedLayout(unsigned char* memory)
      : q{shared_address(memory)},
        stages(q.start + q_bytes),
        visibility(reinterpret_cast<QueryVisibility*>(memory + q_bytes + 2 * stage_bytes)),
        place(reinterpret_cast<BlockPlace*>(visibility + 1)) {}

  [[nodiscard]] __device__ SwizzledTile<columns> k(int stage) const {
    return {stages + static_cast<unsigned>(stage * stage_bytes)};
  }
  [[nodiscard]] __device__ SwizzledTile<columns> v(int stage) const { return {k(stage).start + k_bytes}; }
};

/// A thread's part of a warp's tile: parts of rows g, g + 8, g + 16, g + 24 with g = lane / 4.
template <int columns>
struct WarpTile {
  float s[halves][tile_keys / 8][4];
  float o[halves][columns / 8][4];
  RowState row[halves][2];

  /// s = q k^T
  __device__ void score(Fragments<columns> q, Fragments<columns> k, auto type) {
#pragma unroll
    for (auto& half : s)
      for (auto& block : half)
        for (float& x : block) x = 0;
#pragma unroll
    for (int d = 0; d < columns / 16; ++d) {
      unsigned a[halves][4];
#pragma unroll
      for (int h = 0; h < halves; ++h) ldmatrix_x4(a[h], q.at(16 * h, 2 * d));
#pragma unroll
      for (int n = 0; n < tile_keys / 16; ++n) {
        unsigned b[4];
        ldmatrix_x4(b, k.at(16 * n, 2 * d));
#pragma unroll
        for (int h = 0; h < halves; ++h) {
          mma_m16n8k16<decltype(type)>(s[h][2 * n], a[h], b[0], b[1]);
          mma_m16n8k16<decltype(type)>(s[h][2 * n + 1], a[h], b[2], b[3]);
        }
      }
    }
  }

  /// Updates m with the maximum of s * scale, rescales o and l, and replaces s by p.
  __device__ void softmax_tile(float scale) {
#pragma unroll
    for (int h = 0; h < halves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float top = -infinity;
#pragma unroll
        for (auto& block : s[h]) top = fmaxf(top, fmaxf(block[2 * i], block[2 * i + 1]));
        RowState& state = row[h][i];
        const float factor = state.update_max(top * scale);
        const float origin = rescale_from(state.m);
#pragma unroll
        for (auto& block : s[h])
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; ++e) {
            block[e] = ex2_approx(fmaf(block[e], scale, -origin));
            state.l += block[e];
          }
#pragma unroll
        for (auto& block : o[h]) {
          block[2 * i] *= factor;
          block[2 * i + 1] *= factor;
        }
      }
  }

  /// o += p v
  __device__ void add_values(Fragments<columns> v, auto type) {
    using T = decltype(type);
#pragma unroll
    for (int k = 0; k < tile_keys / 16; ++k) {
      unsigned a[halves][4];
#pragma unroll
      for (int h = 0; h < halves; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&block)[4] = s[h][2 * k + i / 2];
          a[h][i] = packed<T>(block[i % 2 * 2], block[i % 2 * 2 + 1]);
        }
#pragma unroll
      for (int n = 0; n < columns / 16; ++n) {
        unsigned b[4];
        ldmatrix_x4_trans(b, v.at(16 * k, 2 * n));
#pragma unroll
        for (int h = 0; h < halves; ++h) {
          mma_m16n8k16<T>(o[h][2 * n], a[h], b[0], b[1]);
          mma_m16n8k16<T>(o[h][2 * n + 1], a[h], b[2], b[3]);
        }
      }
    }
  }
};

}  // namespace ring_attention::cuda::mma_forward_tiles
