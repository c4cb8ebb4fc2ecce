/// \file
/// Kernel 2: tensor cores with mma.sync; the fastest kernel for sm_80 and sm_89.
///
/// Source: Dao, FlashAttention-2, arXiv 2307.08691, algorithm 1. What changed since kernel 1: both products use
/// mma_m16n8k16 of a warp (16x16 times 16x8), on bf16 or fp16 with sums in fp32. A block of four warps has 128 queries
/// of one head, each warp 32 of them. All warps share tiles of 64 keys in shared memory:
///
///      warp's 32 queries      K tile             V tile
///      (shared, swizzled)     64 keys            64 keys
///            q        x        k^T     = s -> p     x v      += o
///        ldmatrix           ldmatrix   registers  ldmatrix    registers
///                                                 .trans
///
/// P stays in registers: the results that a lane has from the first product, rounded to 16 bits, are its operands of
/// the second. A warp has 32 rows so that it uses every piece of K and V twice; with 16 rows shared memory would limit
/// the speed. While one tile is computed, cp.async copies the next. One barrier per tile orders both: the tile has
/// arrived, and the other buffer is free.
///
/// The maximum is taken of the products before they are scaled. The exponent applies the scale: p = 2^(s scale - m).
/// Expects a dim of at most 128 that is a multiple of 8 (columns up to 64 or 128 are filled with zeros).
#include "ring_attention/cuda/kernels/common/mma_forward.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

using namespace mma_forward_tiles;  // NOLINT: made for this file

constexpr int threads = 32 * warps;

template <class T, int columns>
__global__ void __launch_bounds__(threads, 2)
    attend_tile(const __grid_constant__ ForwardTask task, int tiles) {
  const SharedLayout<columns> shared(dynamic_shared<unsigned char>());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warp_query = warp * queries_of_warp;
  {
    // Under a causal mask the last tiles see the most keys. They come first, so that the blocks end at about the same
    // time. The heads of a group are consecutive and share K,V in the cache.
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

#pragma unroll
  for (int h = 0; h < halves; ++h)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_query + 16 * h + 8 * i + lane / 4;
      const float l = state.row[h][i].sum_of_quad();
      if (task.last) {
#pragma unroll
        for (auto& block : state.o[h])
#pragma unroll
          for (int e = 2 * i; e < 2 * i + 2; ++e) block[e] = out_of(block[e], l);
      }
      if (shared.place->first_query + row >= task.queries || lane % 4 != 0) continue;
      const float m = state.row[h][i].m;
      task.m[shared.place->query_row + row] = task.last ? lse_of(m, l) : m;
      task.l[shared.place->query_row + row] = l;
    }
  for_pairs([](float2& o, float x, float y) { o = {x, y}; });
}

template <class T, int columns>
void attend_with(const ForwardTask& task, StreamHandle stream) {
  const int tiles = blocks_of(task.queries, tile_queries);
  launch(attend_tile<T, columns>,
         {Index{tiles} * task.batch * task.heads, threads, SharedLayout<columns>::bytes}, stream, task,
         tiles);
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

extern const ForwardKernel forward_2_mma{2,    "mma", "mma.sync, ldmatrix, cp.async in two stages",
                                         true, takes, attend};

}  // namespace ring_attention::cuda
