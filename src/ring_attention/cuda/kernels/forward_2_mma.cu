/// \file
/// Step 2: tensor cores by mma.sync; the path of sm_80 and sm_89.
///
/// Source: Dao, FlashAttention-2, arXiv 2307.08691, algorithm 1. What changed since step 1: both products are
/// mma_m16n8k16 of a warp (16x16 times 16x8), on bf16 or fp16 with sums in fp32. A block of four warps takes 128
/// queries of one head, each warp 32 of them, and all share tiles of 64 keys in shared memory:
///
///      warp's 32 queries      K tile             V tile
///      (shared, swizzled)     64 keys            64 keys
///            q        x        k^T     = s -> p     x v      += o
///        ldmatrix           ldmatrix   registers  ldmatrix    registers
///                                                 .trans
///
/// P never leaves the registers: what a product leaves in a lane is, packed, what the next one takes. 32 rows a warp use
/// every piece of K and V twice; with 16 shared memory would set the pace. While one tile is computed, cp.async brings
/// the next: one barrier a tile says both "it has arrived" and "the other buffer is free".
///
/// The largest products are found before the scale is applied, which is folded into the exponent: p = 2^(s scale - m).
/// Expects a dim of at most 128 that is a multiple of 8 (columns up to 64 or 128 are filled with zeros).
#include "ring_attention/cuda/kernels/common/mma_tiles.cuh"
#include "ring_attention/cuda/kernels/common/softmax.cuh"
#include "ring_attention/cuda/ladder.hpp"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

constexpr int warps = 4;
constexpr int threads = 32 * warps;
constexpr int queries_of_warp = 32;
constexpr int tile_queries = queries_of_warp * warps;
constexpr int tile_keys = 64;
constexpr int halves = queries_of_warp / 16;  // a's of 16 rows

using QueryExtents = Extents<tile_queries, queries_of_warp>;

/// Of a block: in shared memory, because the registers are full.
struct Place {
  Index query_row, key_row;  ///< of q and o, of k and v: the first of the tile, of the head
  int first_query;
  float slope;  ///< in units of log 2; 0: no bias
};

template <int columns>
struct SharedLayout {
  static constexpr int q_bytes = 2 * tile_queries * columns;
  static constexpr int k_bytes = 2 * tile_keys * columns;
  static constexpr int stage_bytes = 2 * k_bytes;  // K, then V
  static constexpr int bytes =
      q_bytes + 2 * stage_bytes + static_cast<int>(sizeof(QueryExtents) + sizeof(Place));

  SwizzledTile<columns> q;
  unsigned stages;
  QueryExtents* extents;
  Place* place;

  __device__ explicit SharedLayout(unsigned char* memory)
      : q{shared_address(memory)},
        stages(q.start + q_bytes),
        extents(reinterpret_cast<QueryExtents*>(memory + q_bytes + 2 * stage_bytes)),
        place(reinterpret_cast<Place*>(extents + 1)) {}

  [[nodiscard]] __device__ SwizzledTile<columns> k(int stage) const {
    return {stages + static_cast<unsigned>(stage * stage_bytes)};
  }
  [[nodiscard]] __device__ SwizzledTile<columns> v(int stage) const { return {k(stage).start + k_bytes}; }
};

/// A thread's part of a warp's tile: of rows g, g + 8, g + 16, g + 24 with g = lane / 4.
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

  /// Raises m to the largest of s, in units that `scale` makes of s, and makes p of s. o and l follow m.
  __device__ void softmax_tile(float scale) {
#pragma unroll
    for (int h = 0; h < halves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float top = -infinity;
#pragma unroll
        for (auto& block : s[h]) top = fmaxf(top, fmaxf(block[2 * i], block[2 * i + 1]));
        RowState& mine = row[h][i];
        const float keep = mine.raise(top * scale);
        const float origin = rescale_from(mine.m);
#pragma unroll
        for (auto& block : s[h])
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; ++e) {
            block[e] = ex2_approx(fmaf(block[e], scale, -origin));
            mine.l += block[e];
          }
#pragma unroll
        for (auto& block : o[h]) {
          block[2 * i] *= keep;
          block[2 * i + 1] *= keep;
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

template <class T, int columns>
__global__ void __launch_bounds__(threads, 2)
    attend_tile(const __grid_constant__ ForwardTask task, int tiles) {
  const SharedLayout<columns> shared(dynamic_shared<unsigned char>());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_query = warp * queries_of_warp;
  {
    // The last tiles see most keys under a causal mask: they come first, so that the blocks end together. The heads of
    // a group follow each other and share K,V in the cache.
    const int all_heads = task.batch * task.heads;
    const int batch_head = static_cast<int>(blockIdx.x) % all_heads;
    const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x) / all_heads) * tile_queries;
    const Index query_row = static_cast<Index>(batch_head) * task.queries + first_query;
    if (thread == 0)
      *shared.place = {query_row, static_cast<Index>(batch_head / (task.heads / task.kv_heads)) * task.keys,
                       first_query,
                       task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[batch_head % task.heads]};
    shared.extents->visibility(task, first_query, thread);
    shared.q.template copy_async<tile_queries, threads>(static_cast<const T*>(task.q) + query_row * task.dim,
                                                        task.queries - first_query, task.dim, thread);
  }
  __syncthreads();

  // Calls visit(o in memory, o here, o here) for every pair of numbers of o that exists.
  WarpTile<columns> mine;
  const auto for_pairs = [&](auto visit) {
    const int rows_left = task.queries - shared.place->first_query - warp_query;
    float* const first = task.o + (shared.place->query_row + warp_query) * task.dim;
#pragma unroll
    for (int h = 0; h < halves; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = 16 * h + 8 * i + lane / 4;
        if (row >= rows_left) continue;
#pragma unroll
        for (int n = 0; n < columns / 8; ++n) {
          const int column = 8 * n + 2 * (lane % 4);
          if (column < task.dim)
            visit(*reinterpret_cast<float2*>(first + static_cast<Index>(row) * task.dim + column),
                  mine.o[h][n][2 * i], mine.o[h][n][2 * i + 1]);
        }
      }
  };
#pragma unroll
  for (int h = 0; h < halves; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * h + 8 * i + lane / 4;
      const Index at = shared.place->query_row + warp_query + row;
      mine.row[h][i] =
          RowState::begin(!task.fresh && shared.place->first_query + warp_query + row < task.queries,
                          task.m + at, task.l + at, lane % 4);
    }
#pragma unroll
  for (auto& half : mine.o)
    for (auto& block : half)
      for (float& x : block) x = 0;
  if (!task.fresh)
    for_pairs([](const float2& o, float& x, float& y) {
      x = o.x;
      y = o.y;
    });

  const auto start_copy = [&](const auto& tile, int stage) {
    const Index from = (shared.place->key_row + tile.first()) * task.dim;
    shared.k(stage).template copy_async<tile_keys, threads>(static_cast<const T*>(task.k) + from, tile.keys(),
                                                            task.dim, thread);
    shared.v(stage).template copy_async<tile_keys, threads>(static_cast<const T*>(task.v) + from, tile.keys(),
                                                            task.dim, thread);
    cp_async_commit();
  };

  KeyTiles tile(*shared.extents, task.ranges, tile_keys);
  if (tile.more()) start_copy(tile, 0);
  for (int stage = 0; tile.more(); stage ^= 1) {
    const int range = tile.range(), first_key = tile.first();
    tile.next();
    cp_async_wait<0>();
    __syncthreads();  // this tile is here, and nobody reads the other any more
    if (tile.more()) start_copy(tile, stage ^ 1);

    const Extent extent = shared.extents->of_group[range][warp];
    if (!extent.sees_some(first_key, tile_keys)) continue;
    mine.score(
        Fragments<columns>::a({shared.q.start + static_cast<unsigned>(warp_query * 2 * columns)}, lane),
        Fragments<columns>::b_of_rows(shared.k(stage), lane), T{});
    const float scale = task.scale * log2_e, slope = shared.place->slope;  // in units of log 2
    if (slope == 0 && scale >= 0 && extent.sees_all(first_key, tile_keys)) {
      mine.softmax_tile(scale);
    } else {
#pragma unroll
      for (int h = 0; h < halves; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = warp_query + 16 * h + 8 * i + lane / 4;
          const MaskedRow careful(task, task.range[range], scale, slope, shared.extents->visible[range][row],
                                  min(shared.place->first_query + row, task.queries - 1),
                                  first_key + 2 * (lane % 4));
#pragma unroll
          for (int n = 0; n < tile_keys / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& x = mine.s[h][n][2 * i + e];
              x = careful.score(x, 8 * n + e);
            }
        }
      mine.softmax_tile(1);
    }
    mine.add_values(Fragments<columns>::b_of_columns(shared.v(stage), lane), T{});
  }

  for_pairs([](float2& o, float x, float y) { o = {x, y}; });
#pragma unroll
  for (int h = 0; h < halves; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_query + 16 * h + 8 * i + lane / 4;
      const float l = mine.row[h][i].sum_of_quad();
      if (shared.place->first_query + row >= task.queries || lane % 4 != 0) continue;
      task.m[shared.place->query_row + row] = mine.row[h][i].m;
      task.l[shared.place->query_row + row] = l;
    }
}

template <class T, int columns>
void attend_with(const ForwardTask& task, StreamHandle stream) {
  const int tiles = blocks_of(task.queries, tile_queries);
  launch(attend_tile<T, columns>,
         LaunchConfig{dim3(static_cast<unsigned>(tiles * task.batch * task.heads)), dim3(threads),
                      SharedLayout<columns>::bytes},
         stream, task, tiles);
}

void attend(const ForwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  with_half_type_and_columns(type, task.dim,
                             [&]<class T, int columns>() { attend_with<T, columns>(task, stream); });
}

bool takes(const DeviceTraits& device, Type type, int dim) {
  return device.compute_capability >= 80 && type != Type::fp32 && dim >= piece && dim <= 128 &&
         dim % piece == 0 && device.shared_bytes_of_block >= SharedLayout<128>::bytes;
}

}  // namespace

ForwardKernel forward_2_mma() {
  return {2, "mma", "mma.sync, ldmatrix, cp.async in two stages", true, takes, attend};
}

}  // namespace ring_attention::cuda
