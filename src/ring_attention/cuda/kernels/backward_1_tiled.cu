/// \file
/// Kernel 1 of the backward, in fp32: the five products of lesson 07 on tiles in shared memory.
/// Source: Dao et al., FlashAttention, arXiv 2205.14135, algorithm 4. For a tile of queries and a tile of keys:
///
///     p  = 2^(log2(e) (s - lse))     forward: p = e^(s - lse), s = scale q k^T
///     ds = p (dO v^T - delta)        forward: p = softmax(s), row by row
///     dv += p^T dO,  dk += scale ds^T q,  dq += scale ds k
/// dK and dV are sums over queries, dQ is a sum over keys. `tiled` is deterministic. In one grid each block owns a
/// tile of keys and loops over the queries; in a second one it owns a tile of queries and loops over the keys. One
/// block computes each sum in a fixed order. s and dp are computed twice: seven products. `tiled-atomics` has only
/// the first grid and adds to dQ with atomics: five products, and the rounding of dQ depends on the order of the
/// blocks. The block of a KV head has all query heads of its group, so dK and dV need no atomics. Expects dim <= 256
/// and 77 KB of shared memory.
///
/// dBias = dS, summed over the heads and batches that share it, has a grid of its own: a block owns a tile and loops
/// over them. With dropout, whose factors are f: dv += (f p)^T dO and ds = p (f dp - delta).
#include "ring_attention/cuda/kernels/common/fp32_tiles.cuh"
#include "ring_attention/cuda/kernels/common/pair_terms.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/math.cuh"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {
namespace {

/// Tiles of `tile` queries and `tile` keys, with rows padded to `columns`.
template <int tile, int columns>
struct SharedMemory {
  using Rows = SharedTile<tile, columns>;
  using Square = SharedTile<tile, tile>;
  static constexpr int bytes = static_cast<int>(sizeof(float)) * (4 * Rows::floats + 2 * Square::floats) +
                               tile * static_cast<int>(sizeof(KeyInterval));

  Rows q, grad_out, k, v;
  Square p, ds;          // [query][key]
  KeyInterval* visible;  // [tile]: the keys of the current range that each query sees

  __device__ explicit SharedMemory(float* memory)
      : q{memory},
        grad_out{q.data + Rows::floats},
        k{grad_out.data + Rows::floats},
        v{k.data + Rows::floats},
        p{v.data + Rows::floats},
        ds{p.data + Square::floats},
        visible(reinterpret_cast<KeyInterval*>(ds.data + Square::floats)) {}
};

/// A tile of queries of one head.
struct Queries {
  int first, count;
  Index row0;   // of the first, in arrays with one number per row
  float slope;  // of ALiBi
};

__device__ Queries queries_of(const BackwardTask& task, int batch_head, int first, int tile) {
  return {first, min(tile, task.queries - first), static_cast<Index>(batch_head) * task.queries + first,
          task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[batch_head % task.heads]};
}

/// Fills `visible` and returns the union of the keys that the queries see. All threads call it.
template <int tile>
__device__ KeyInterval load_visible(const BackwardTask& task, const Queries& queries, const KeyRange& range,
                                    KeyInterval* visible) {
  __syncthreads();  // all threads have read `visible` and the previous tiles
  for (int i = static_cast<int>(threadIdx.x); i < tile; i += threads)
    visible[i] = i < queries.count ? visible_keys(range, task.visible[queries.first + i]) : KeyInterval{0, 0};
  __syncthreads();
  return union_of<tile>(visible);
}

/// Computes p and ds of the tiles in shared memory, with dropout f p instead of p; ds is that of the products, or, `of_scores`,
/// that of the scores. `first_key` is the first key of the tile.
template <bool of_scores = false, class Task, int tile, int columns>
__device__ void compute_p_and_ds(const Task& task, int batch_head, const Queries& queries,
                                 const KeyRange& range, int first_key,
                                 const SharedMemory<tile, columns>& shared, const ThreadPlace& thread) {
  constexpr int per_thread = tile / side;
  float s[per_thread][per_thread], dp[per_thread][per_thread];
  product_abt(thread, shared.q, shared.k, s);
  product_abt(thread, shared.grad_out, shared.v, dp);
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int query = thread.y + side * i;
    const KeyInterval visible = shared.visible[query];
    const bool real = query < queries.count;
    const auto pairs = pair_row(task, batch_head, queries.first + query, range);
    const float lse = real ? log2_e * task.lse[queries.row0 + query] : 0;
    const float delta = real ? task.delta[queries.row0 + query] : 0;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      const int key = first_key + thread.x + side * j;
      const float product = task.scale * log2_e * s[i][j];
      float score = pairs.capped(product);
      if (queries.slope != 0 && real)
        score += alibi(queries.slope, range, key, task.position[queries.first + query]);
      const float p = key >= visible.begin && key < visible.end ? pairs.weight(score, lse, key) : 0;
      shared.p.at(query, thread.x + side * j) = pairs.dropped(p, key);
      const float ds = pairs.score_gradient(p, dp[i][j], delta, key);
      shared.ds.at(query, thread.x + side * j) = of_scores ? ds : pairs.product_gradient(ds, product);
    }
  }
}

/// Calls add(index, value) for this thread's elements of `count` rows.
template <int rows, int parts, class Add>
__device__ void add_rows(const ThreadPlace& thread, const float4 (&sum)[rows][parts], int count, int dim,
                         Add add) {
#pragma unroll
  for (int i = 0; i < rows; ++i)
#pragma unroll
    for (int c = 0; c < parts; ++c)
      if (thread.y + side * i < count)
        for_columns(sum[i][c], 4 * thread.x + 64 * c, dim,
                    [&](int column, float value) { add((thread.y + side * i) * dim + column, value); });
}

/// dK and dV of one tile of keys; with `atomic_dq` also its contribution to dQ, by atomics.
template <class Task, int tile, int columns, bool atomic_dq>
__global__ void __launch_bounds__(threads, 1)
    backward_dkdv_kernel(Task task, Type type, int range_index, int first_key_of_range) {
  constexpr int rows = tile / side, parts = columns / 64;
  const SharedMemory<tile, columns> shared(dynamic_shared<float>());
  const ThreadPlace thread;
  const KeyRange& range = task.range[range_index];
  const int kv_heads = task.batch * task.kv_heads, group = task.heads / task.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int first_key = first_key_of_range + static_cast<int>(blockIdx.x) / kv_heads * tile;
  const int keys = min(tile, first_key_of_range + static_cast<int>(range.tokens.count) - first_key);
  const Index key0 = (static_cast<Index>(kv_head) * task.keys + first_key) * task.dim;
  shared.k.load(task.k, type, key0, keys, task.dim);
  shared.v.load(task.v, type, key0, keys, task.dim);

  float4 dk[rows][parts] = {}, dv[rows][parts] = {};
  for (int member = 0; member < group; ++member)
    for (int first_query = 0; first_query < task.queries; first_query += tile) {
      const int batch_head = kv_head * group + member;
      const Queries queries = queries_of(task, batch_head, first_query, tile);
      const KeyInterval any = load_visible<tile>(task, queries, range, shared.visible);
      if (any.begin >= first_key + keys || any.end <= first_key) continue;  // the same for all threads
      const Index from = queries.row0 * task.dim;
      shared.q.load(task.q, type, from, queries.count, task.dim);
      shared.grad_out.load(task.grad_out, type, from, queries.count, task.dim);
      __syncthreads();
      compute_p_and_ds(task, batch_head, queries, range, first_key, shared, thread);
      __syncthreads();
      const auto p = [&](int key, int query) { return shared.p.at(query, key); };
      const auto ds = [&](int key, int query) { return shared.ds.at(query, key); };
      add_weighted_rows<tile>(thread, p, shared.grad_out, dv);
      add_weighted_rows<tile>(thread, ds, shared.q, dk);
      if constexpr (atomic_dq) {
        float4 dq[rows][parts] = {};
        add_weighted_rows<tile>(
            thread, [&](int query, int key) { return shared.ds.at(query, key); }, shared.k, dq);
        add_rows(thread, dq, queries.count, task.dim,
                 [&](int at, float value) { atomicAdd(task.grad_q + from + at, task.scale * value); });
      }
    }  // load_visible() begins with a barrier, so no thread overwrites q and dO too early
  add_rows(thread, dk, keys, task.dim,
           [&](int at, float value) { task.grad_k[key0 + at] += task.scale * value; });
  add_rows(thread, dv, keys, task.dim, [&](int at, float value) { task.grad_v[key0 + at] += value; });
}

/// dQ of one tile of queries.
template <class Task, int tile, int columns>
__global__ void __launch_bounds__(threads, 1) backward_dq_kernel(Task task, Type type, int tiles) {
  constexpr int rows = tile / side, parts = columns / 64;
  const SharedMemory<tile, columns> shared(dynamic_shared<float>());
  const ThreadPlace thread;
  const int all_heads = task.batch * task.heads;
  const int batch_head = static_cast<int>(blockIdx.x) % all_heads;
  const int first_query = (tiles - 1 - static_cast<int>(blockIdx.x) / all_heads) * tile;
  const Queries queries = queries_of(task, batch_head, first_query, tile);
  const Index from = queries.row0 * task.dim;
  const Index key0 = static_cast<Index>(batch_head / (task.heads / task.kv_heads)) * task.keys;
  shared.q.load(task.q, type, from, queries.count, task.dim);
  shared.grad_out.load(task.grad_out, type, from, queries.count, task.dim);

  float4 dq[rows][parts] = {};
  for (int r = 0; r < task.ranges; ++r) {
    const KeyInterval any = load_visible<tile>(task, queries, task.range[r], shared.visible);
    for (int first_key = any.begin; first_key < any.end; first_key += tile) {
      const int keys = min(tile, any.end - first_key);
      const Index at_keys = (key0 + first_key) * task.dim;
      __syncthreads();  // all threads have read k and ds of the previous tile
      shared.k.load(task.k, type, at_keys, keys, task.dim);
      shared.v.load(task.v, type, at_keys, keys, task.dim);
      __syncthreads();
      compute_p_and_ds(task, batch_head, queries, task.range[r], first_key, shared, thread);
      __syncthreads();
      add_weighted_rows<tile>(
          thread, [&](int query, int key) { return shared.ds.at(query, key); }, shared.k, dq);
    }
  }
  add_rows(thread, dq, queries.count, task.dim,
           [&](int at, float value) { task.grad_q[from + at] += task.scale * value; });
}

/// dBias of one tile of queries and one tile of keys: ds, summed over the heads that share the bias.
template <int tile, int columns>
__global__ void __launch_bounds__(threads, 1)
    backward_dbias_kernel(WithPairs<BackwardTask> task, Type type, int range_index, int tiles_of_queries) {
  constexpr int per_thread = tile / side;
  const SharedMemory<tile, columns> shared(dynamic_shared<float>());
  const ThreadPlace thread;
  const PairTerms& pairs = task.pairs;
  const KeyRange& range = task.range[range_index];
  const int matrices = pairs.bias_batches * pairs.bias_heads;
  const int matrix = static_cast<int>(blockIdx.x) % matrices;
  const int number = static_cast<int>(blockIdx.x) / matrices;
  const int first_query = number % tiles_of_queries * tile, first_of_range = static_cast<int>(range.first);
  const int first_key = first_of_range + number / tiles_of_queries * tile;
  const int keys = min(tile, first_of_range + static_cast<int>(range.tokens.count) - first_key);

  float sum[per_thread][per_thread] = {};
  for (int batch_head = 0; batch_head < task.batch * task.heads; ++batch_head) {
    if (bias_matrix(task, pairs, batch_head) != matrix) continue;
    const Queries queries = queries_of(task, batch_head, first_query, tile);
    const KeyInterval any = load_visible<tile>(task, queries, range, shared.visible);
    if (any.begin >= first_key + keys || any.end <= first_key) return;  // the same for all heads and threads
    const Index from = queries.row0 * task.dim;
    const Index key0 =
        (static_cast<Index>(batch_head / (task.heads / task.kv_heads)) * task.keys + first_key) * task.dim;
    shared.q.load(task.q, type, from, queries.count, task.dim);
    shared.grad_out.load(task.grad_out, type, from, queries.count, task.dim);
    shared.k.load(task.k, type, key0, keys, task.dim);
    shared.v.load(task.v, type, key0, keys, task.dim);
    __syncthreads();
    compute_p_and_ds<true>(task, batch_head, queries, range, first_key, shared, thread);
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
#pragma unroll
      for (int j = 0; j < per_thread; ++j)  // this thread has written them
        sum[i][j] += shared.ds.at(thread.y + side * i, thread.x + side * j);
  }

#pragma unroll
  for (int i = 0; i < per_thread; ++i)
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      const int query = first_query + thread.y + side * i, key = thread.x + side * j;
      if (query < task.queries && key < keys)
        pairs.grad_bias[bias_row(task, pairs, matrix, query) + position_of(range, first_key + key)] +=
            sum[i][j];
    }
}

template <int tile, int columns, bool atomic_dq, class Task>
void differentiate_with(const Task& task, Type type, StreamHandle stream) {
  const auto grid = [](Index blocks) {
    return LaunchConfig{blocks, threads, SharedMemory<tile, columns>::bytes};
  };
  const int tiles = blocks_of(task.queries, tile);
  for (int r = 0; r < task.ranges; ++r) {
    const Index blocks = blocks_of(task.range[r].tokens.count, Index{tile});
    launch(backward_dkdv_kernel<Task, tile, columns, atomic_dq>, grid(blocks * task.batch * task.kv_heads),
           stream, task, type, r, static_cast<int>(task.range[r].first));
    if constexpr (has_pairs<Task>)
      if (const PairTerms& pairs = task.pairs; pairs.grad_bias != nullptr)
        launch(backward_dbias_kernel<tile, columns>,
               grid(blocks * tiles * pairs.bias_batches * pairs.bias_heads), stream, task, type, r, tiles);
  }
  if constexpr (!atomic_dq)
    launch(backward_dq_kernel<Task, tile, columns>, grid(static_cast<Index>(tiles) * task.batch * task.heads),
           stream, task, type, tiles);
}

template <bool atomic_dq, class Task>
void differentiate(const Task& task, Type type, const DeviceTraits&, StreamHandle stream) {
  if (task.dim <= 64)
    differentiate_with<32, 64, atomic_dq>(task, type, stream);
  else if (task.dim <= 128)
    differentiate_with<32, 128, atomic_dq>(task, type, stream);
  else
    differentiate_with<16, 256, atomic_dq>(task, type, stream);
}

bool takes(const DeviceTraits& device, Type, int dim) {
  return dim >= 1 && dim <= 256 && device.shared_bytes_of_block >= SharedMemory<32, 128>::bytes;
}

}  // namespace

extern const BackwardKernel backward_1_tiled{1,
                                             "tiled",
                                             "fp32, tiles in shared memory, two passes",
                                             true,
                                             takes,
                                             differentiate<false, BackwardTask>,
                                             differentiate<false, WithPairs<BackwardTask>>};

extern const BackwardKernel backward_1_tiled_with_atomics{
    1,
    "tiled-atomics",
    "fp32, tiles in shared memory, one pass, atomics for dQ",
    false,
    takes,
    differentiate<true, BackwardTask>,
    differentiate<true, WithPairs<BackwardTask>>};

}  // namespace ring_attention::cuda
