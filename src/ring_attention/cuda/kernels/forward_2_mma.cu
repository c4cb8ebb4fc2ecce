/// \file
/// Kernel 2: tensor cores with mma.sync; the fastest kernel for sm_80 and sm_89.
///
/// Source: Dao, FlashAttention-2, arXiv 2307.08691, algorithm 1. What changed since kernel 1: both products use
/// mma_m16n8k16 of a warp (16x16 times 16x8), on bf16 or fp16 with sums in fp32. A block of four warps has 128 queries of
/// one head, each warp 32 of them. All warps share tiles of 64 keys in shared memory:
///
///      warp's 32 queries      K tile             V tile
///      (shared, swizzled)     64 keys            64 keys
///            q        x        k^T     = s -> p     x v      += o
///        ldmatrix           ldmatrix   registers  ldmatrix    registers
///                                                 .trans
///
/// P stays in registers: the results that a lane has from the first product, rounded to 16 bits, are its operands of the
/// second. A warp has 32 rows so that it uses every piece of K and V twice; with 16 rows shared memory would limit the speed.
/// While one tile is computed, cp.async copies the next. One barrier per tile orders both: the tile has arrived, and the
/// other buffer is free.
///
/// The maximum is taken of the products before they are scaled. The exponent applies the scale: p = 2^(s scale - m).
/// Expects a dim of at most 128 that is a multiple of 8 (columns up to 64 or 128 are filled with zeros).
#include "ring_attention/cuda/kernels/common/mma_tiles.cuh"
#include "ring_attention/cuda/kernels/common/softmax.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

constexpr int warps = 4;
constexpr int threads = 32 * warps;
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

template <class T, int columns>
__global__ void __launch_bounds__(threads, 2)
    attend_tile(const __grid_constant__ ForwardTask task, int tiles) {
  const SharedLayout<columns> shared(dynamic_shared<unsigned char>());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_query = warp * queries_of_warp;
  {
    // Under a causal mask the last tiles see the most keys. They come first, so that the blocks end at about the same time.
    // The heads of a group are consecutive and share K,V in the cache.
    const int all_heads = task.batch * task.heads;
    const int batch_head = static_cast<int>(blockIdx.x) % all_heads;
    const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x) / all_heads) * tile_queries;
    const Index query_row = static_cast<Index>(batch_head) * task.queries + first_query;
    if (thread == 0)
      *shared.place = {query_row, static_cast<Index>(batch_head / (task.heads / task.kv_heads)) * task.keys,
                       first_query,
                       task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[batch_head % task.heads]};
    shared.visibility->compute(task, first_query, thread);
    shared.q.template copy_async<tile_queries, threads>(static_cast<const T*>(task.q) + query_row * task.dim,
                                                        task.queries - first_query, task.dim, thread);
  }
  __syncthreads();

  // Calls visit(pair of o in memory, o in a register, the next o) for every existing pair of numbers of o.
  WarpTile<columns> state;
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
                  state.o[h][n][2 * i], state.o[h][n][2 * i + 1]);
        }
      }
  };
#pragma unroll
  for (int h = 0; h < halves; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * h + 8 * i + lane / 4;
      const Index at = shared.place->query_row + warp_query + row;
      state.row[h][i] =
          RowState::load(!task.fresh && shared.place->first_query + warp_query + row < task.queries,
                         task.m + at, task.l + at, lane % 4);
    }
#pragma unroll
  for (auto& half : state.o)
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

  KeyTiles tile(*shared.visibility, task.ranges, tile_keys);
  if (tile.more()) start_copy(tile, 0);
  for (int stage = 0; tile.more(); stage ^= 1) {
    const int range = tile.range(), first_key = tile.first();
    tile.next();
    cp_async_wait<0>();
    __syncthreads();  // this tile has arrived, and all threads have read the other buffer
    if (tile.more()) start_copy(tile, stage ^ 1);

    const Visibility visible = shared.visibility->of_group[range][warp];
    if (!visible.includes_some(first_key, tile_keys)) continue;
    state.score(
        Fragments<columns>::a({shared.q.start + static_cast<unsigned>(warp_query * 2 * columns)}, lane),
        Fragments<columns>::b_of_rows(shared.k(stage), lane), T{});
    const float scale = task.scale * log2_e, slope = shared.place->slope;  // in units of log 2
    if (slope == 0 && scale >= 0 && visible.includes_all(first_key, tile_keys)) {
      state.softmax_tile(scale);
    } else {
#pragma unroll
      for (int h = 0; h < halves; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = warp_query + 16 * h + 8 * i + lane / 4;
          const MaskedRow masked(
              task, task.range[range], scale, slope, shared.visibility->visible[range][row],
              min(shared.place->first_query + row, task.queries - 1), first_key + 2 * (lane % 4));
#pragma unroll
          for (int n = 0; n < tile_keys / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& x = state.s[h][n][2 * i + e];
              x = masked.score(x, 8 * n + e);
            }
        }
      state.softmax_tile(1);
    }
    state.add_values(Fragments<columns>::b_of_columns(shared.v(stage), lane), T{});
  }

  for_pairs([](float2& o, float x, float y) { o = {x, y}; });
#pragma unroll
  for (int h = 0; h < halves; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_query + 16 * h + 8 * i + lane / 4;
      const float l = state.row[h][i].sum_of_quad();
      if (shared.place->first_query + row >= task.queries || lane % 4 != 0) continue;
      task.m[shared.place->query_row + row] = state.row[h][i].m;
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
