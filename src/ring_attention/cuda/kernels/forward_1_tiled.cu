/// \file
/// Kernel 1: tiles in shared memory and an online softmax; lesson 03 on the GPU, in fp32.
///
/// Source: Dao et al., FlashAttention, arXiv 2205.14135, algorithm 1. What changed since kernel 0: S is never in device
/// memory. A block of 256 threads has one tile of queries of one head and loops over the keys:
///
///                 K tile, then V tile (one buffer)
///               +----------------+
///      Q tile   |  s = q k^T     |    m' = max(m, s), p = 2^(s - m'), a = 2^(m - m')
///      stays    |  p in shared   |    l = a l + sum p,  o = a o + p v
///               +----------------+
///
/// A row of scores is distributed over 16 threads of one warp: maximum and sum are shuffles. (o, m, l) stay in
/// registers and are stored at the end, so that the next step of the ring can continue with them.
///
/// An element that is read from device memory is used `tile` times instead of once. Now shared memory limits the speed:
/// one 16-byte read per 8 multiply-adds. With a bias, a softcap or dropout the kernel is another instance: the bias is added to s,
/// and p v has the factors of the dropout, which the sum l does not have. Expects dim <= 256 and 85 KB of shared memory
/// (71 KB if dim > 128).
#include "ring_attention/cuda/kernels/common/fp32_tiles.cuh"
#include "ring_attention/cuda/kernels/common/pair_terms.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {
namespace {

constexpr unsigned whole_warp = 0xffffffffU;

/// Reductions over the 16 threads that share a row.
__device__ float max_of_row(float x) {
  for (int distance = side / 2; distance > 0; distance /= 2)
    x = fmaxf(x, __shfl_xor_sync(whole_warp, x, distance));
  return x;
}
__device__ float sum_of_row(float x) {
  for (int distance = side / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(whole_warp, x, distance);
  return x;
}

/// Tiles of `tile` queries and `tile` keys, with rows padded to `columns`.
template <int tile, int columns>
struct SharedMemory {
  using Rows = SharedTile<tile, columns>;
  using Square = SharedTile<tile, tile>;
  static constexpr int bytes = static_cast<int>(sizeof(float)) * (2 * Rows::floats + Square::floats) +
                               tile * static_cast<int>(sizeof(KeyInterval));

  Rows q, kv;
  Square p;
  KeyInterval* visible;  // [tile]: the keys of the current range that each query sees

  __device__ explicit SharedMemory(float* memory)
      : q{memory},
        kv{memory + Rows::floats},
        p{kv.data + Rows::floats},
        visible(reinterpret_cast<KeyInterval*>(p.data + Square::floats)) {}
};

template <class Task, int tile, int columns>
__global__ void __launch_bounds__(threads, 1) attend_tile(Task task, Type type, int tiles) {
  constexpr int per_thread = tile / side;  // rows and keys of a thread
  const SharedMemory<tile, columns> shared(dynamic_shared<float>());
  const ThreadPlace thread;
  // Under a causal mask the last tiles see the most keys. They come first, so that the blocks end at about the same
  // time.
  const int all_heads = task.batch * task.heads;
  const int batch_head = static_cast<int>(blockIdx.x) % all_heads;
  const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x) / all_heads) * tile;
  const int queries = min(tile, task.queries - first_query);
  const Index row0 = static_cast<Index>(batch_head) * task.queries + first_query;
  const Index key0 = static_cast<Index>(batch_head / (task.heads / task.kv_heads)) * task.keys;
  const float slope = task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[batch_head % task.heads];
  const float scale = task.scale * log2_e;  // scores in units of log 2

  float m[per_thread], l[per_thread];
  float4 o[per_thread][columns / 64];
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int query = thread.y + side * i;
    const bool carry = !task.fresh && query < queries;
    m[i] = carry ? task.m[row0 + query] : -infinity;
    l[i] = carry ? task.l[row0 + query] : 0;
#pragma unroll
    for (int c = 0; c < columns / 64; ++c) {
      o[i][c] = {0, 0, 0, 0};
      if (!carry) continue;
      const float* from = task.o + (row0 + query) * task.dim;
      for_columns(o[i][c], 4 * thread.x + 64 * c, task.dim,
                  [&](int column, float& value) { value = from[column]; });
    }
  }
  shared.q.load(task.q, type, row0 * task.dim, queries, task.dim);

  for (int r = 0; r < task.ranges; ++r) {
    const KeyRange& range = task.range[r];
    __syncthreads();  // all threads have read `visible` of the previous range
    for (int i = static_cast<int>(threadIdx.x); i < tile; i += threads)
      shared.visible[i] =
          i < queries ? visible_keys(range, task.visible[first_query + i]) : KeyInterval{0, 0};
    __syncthreads();
    const KeyInterval any = union_of<tile>(shared.visible);

    for (int first_key = any.begin; first_key < any.end; first_key += tile) {
      const int keys = min(tile, any.end - first_key);
      const Index from = (key0 + first_key) * task.dim;
      __syncthreads();  // all threads have read V and p of the previous tile
      shared.kv.load(task.k, type, from, keys, task.dim);
      __syncthreads();
      float s[per_thread][per_thread];
      product_abt(thread, shared.q, shared.kv, s);
#pragma unroll
      for (int i = 0; i < per_thread; ++i) {
        const int query = thread.y + side * i;
        const KeyInterval visible = shared.visible[query];
        const auto pairs = pair_row(task, batch_head, first_query + query, range);
        float top = -infinity;
#pragma unroll
        for (int j = 0; j < per_thread; ++j) {
          const int key = first_key + thread.x + side * j;
          s[i][j] = pairs.capped(s[i][j] * scale);
          if (slope != 0 && query < queries)
            s[i][j] += alibi(slope, range, key, task.position[first_query + query]);
          if (key < visible.begin || key >= visible.end)
            s[i][j] = -infinity;
          else
            s[i][j] = pairs.biased(s[i][j], key);
          top = fmaxf(top, s[i][j]);
        }
        const float before = m[i];
        m[i] = fmaxf(before, max_of_row(top));
        const float origin = rescale_from(m[i]), a = exp2f(before - origin);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < per_thread; ++j) {
          const float p = exp2f(s[i][j] - origin);
          sum += p;
          shared.p.at(query, thread.x + side * j) = pairs.dropped(p, first_key + thread.x + side * j);
        }
        l[i] = a * l[i] + sum_of_row(sum);
#pragma unroll
        for (float4& part : o[i]) scale_by(part, a);
      }
      __syncthreads();  // all threads have written p and read K
      shared.kv.load(task.v, type, from, keys, task.dim);
      __syncthreads();
      add_weighted_rows<tile>(
          thread, [&](int query, int key) { return shared.p.at(query, key); }, shared.kv, o);
    }
  }

#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int query = thread.y + side * i;
    if (query >= queries) continue;
    if (thread.x == 0) {
      task.m[row0 + query] = task.last ? lse_of(m[i], l[i]) : m[i];
      task.l[row0 + query] = l[i];
    }
    float* to = task.o + (row0 + query) * task.dim;
#pragma unroll
    for (int c = 0; c < columns / 64; ++c)
      for_columns(o[i][c], 4 * thread.x + 64 * c, task.dim,
                  [&](int column, float value) { to[column] = task.last ? out_of(value, l[i]) : value; });
  }
}

template <int tile, int columns, class Task>
void attend_with(const Task& task, Type type, StreamHandle stream) {
  const int tiles = blocks_of(task.queries, tile);
  launch(attend_tile<Task, tile, columns>,
         {Index{tiles} * task.batch * task.heads, threads, SharedMemory<tile, columns>::bytes}, stream, task,
         type, tiles);
}

template <class Task>
void attend(const Task& task, Type type, const DeviceTraits&, StreamHandle stream) {
  if (task.dim <= 64)
    attend_with<64, 64>(task, type, stream);
  else if (task.dim <= 128)
    attend_with<64, 128>(task, type, stream);
  else
    attend_with<32, 256>(task, type, stream);
}

bool takes(const DeviceTraits& device, Type, int dim) {
  return dim >= 1 && dim <= 256 && device.shared_bytes_of_block >= SharedMemory<64, 128>::bytes;
}

}  // namespace

extern const ForwardKernel forward_1_tiled{1,
                                           "tiled",
                                           "fp32, tiles in shared memory, online softmax",
                                           true,
                                           takes,
                                           attend<ForwardTask>,
                                           attend<WithPairs<ForwardTask>>};

}  // namespace ring_attention::cuda
