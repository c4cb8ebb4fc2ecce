/// \file
/// Kernel 2 of the backward: the five products of lesson 07 with mma.sync, for sm_80 and later.
///
/// Source: Dao, FlashAttention-2, arXiv 2307.08691, algorithm 2. With bf16 or fp16 factors and sums in fp32:
///
///     p  = 2^(log2(e) (s - lse))     forward: p = e^(s - lse), s = scale q k^T
///     ds = p (dO v^T - delta)        forward: p = softmax(s), row by row
///     dv += p^T dO,  dk += scale ds^T q,  dq += scale ds k
///
/// A block of four warps owns 64 keys. Each warp has 16 of them, with their dK and dV in registers. The block loops
/// over the queries of all heads of the group in tiles of 64. It computes s and dO v^T transposed, keys by queries: so
/// p^T and ds^T, rounded to 16 bits, are operands for dv and dk without leaving the registers. Only dq needs the ds of
/// all warps, through shared memory. Two variants:
///
/// - `mma-atomics` adds each block's contribution to dq with atomics: five products.
/// - `mma` is deterministic. In a second grid each block owns 64 queries, loops over the keys and computes dq: seven
///   products.
///
/// Expects a dim of at most 128 that is a multiple of 8, and 84 KB of shared memory.
#include "ring_attention/cuda/kernels/common/mma_backward.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {
namespace {

using namespace mma_backward_tiles;  // NOLINT: made for this file

/// dK and dV of 64 keys; with `atomic_dq` also their contribution to dQ, by atomics.
template <class T, int columns, bool atomic_dq>
__global__ void __launch_bounds__(threads)
    backward_dkdv_kernel(const __grid_constant__ BackwardTask task, int tiles) {
  const SharedMemory<columns> shared(dynamic_shared<unsigned char>());
  const int thread = static_cast<int>(threadIdx.x), warp_row = thread / 32 * 16;
  const int group = task.heads / task.kv_heads, block = static_cast<int>(blockIdx.x);
  const int kv_head = block / tiles;  // numbered over the whole batch
  const auto [range, first_key, keys] = KeyTile(task, block % tiles, tile);
  const Index key_row = static_cast<Index>(kv_head) * task.keys + first_key;
  shared.template copy_async<T>(shared.k, task.k, key_row, keys, task.dim, thread);
  shared.template copy_async<T>(shared.v, task.v, key_row, keys, task.dim, thread);
  cp_async_commit();

  float dk[columns / 8][4] = {}, dv[columns / 8][4] = {};  // of keys warp_row + g and + 8
  const int query_tiles = (task.queries + tile - 1) / tile;
  for (int step = 0; step < group * query_tiles; ++step) {
    const int batch_head = kv_head * group + step / query_tiles, first_query = step % query_tiles * tile;
    const Index query_row = static_cast<Index>(batch_head) * task.queries + first_query;
    __syncthreads();  // all threads have read the previous queries
    shared.load_rows(task, query_row, first_query, thread);
    __syncthreads();
    const Visibility visible = shared.of->visibility.of_range(range);
    if (!visible.includes_some(first_key, keys)) continue;
    const int queries = task.queries - first_query;
    shared.template copy_async<T>(shared.q, task.q, query_row, queries, task.dim, thread);
    shared.template copy_async<T>(shared.grad_out, task.grad_out, query_row, queries, task.dim, thread);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();

    const int lane = opaque(thread) % 32;   // the addresses that depend on it are computed in each iteration
    float p[tile / 8][4], ds[tile / 8][4];  // of keys warp_row + g and + 8, queries 8 j + 2 t and the next
    product_abt<T>(shared.k, warp_row, shared.q, lane, p);
    product_abt<T>(shared.v, warp_row, shared.grad_out, lane, ds);
    const Pairs pairs =
        pairs_of(task, range, batch_head % task.heads, first_key, visible.includes_all(first_key, tile));
    compute_p_and_ds<false>(pairs, range, *shared.of, warp_row, lane, p, ds);
#pragma unroll
    for (int k = 0; k < tile / 16; ++k) {
      unsigned a[4];
      pack<T>(p, k, a);
      add_product<T>(a, shared.grad_out, 16 * k, lane, dv);
      pack<T>(ds, k, a);
      add_product<T>(a, shared.q, 16 * k, lane, dk);
      if constexpr (atomic_dq)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          store_shared(shared.ds.address(warp_row + lane / 4 + i % 2 * 8, 2 * k + i / 2) +
                           static_cast<unsigned>(lane % 4 * 4),
                       a[i]);
    }
    if constexpr (atomic_dq) {
      __syncthreads();
      const auto of_ds = Fragments<tile>::a_of_columns(shared.ds, lane);
#pragma unroll 1
      for (int part = 0; part < columns; part += 32) {  // the registers are full of dk and dv
        float dq[4][4] = {};                            // of queries warp_row + g and + 8
#pragma unroll
        for (int k = 0; k < tile / 16; ++k) {
          unsigned a[4];
          ldmatrix_x4_trans(a, of_ds.at(16 * k, warp_row / piece));
          add_product<T>(a, shared.k, 16 * k, lane, dq, part / 8);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int row = warp_row + lane / 4 + e / 2 * 8, column = part + 8 * j + lane % 4 * 2 + e % 2;
            if (row < queries && column < task.dim)
              atomicAdd(task.grad_q + (query_row + row) * task.dim + column, task.scale * dq[j][e]);
          }
      }
    }
  }
  const int lane = thread % 32;
#pragma unroll
  for (int j = 0; j < columns / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = warp_row + lane / 4 + e / 2 * 8, column = 8 * j + lane % 4 * 2 + e % 2;
      if (row >= keys || column >= task.dim) continue;
      task.grad_k[(key_row + row) * task.dim + column] += task.scale * dk[j][e];
      task.grad_v[(key_row + row) * task.dim + column] += dv[j][e];
    }
}

/// dQ of 64 queries.
template <class T, int columns>
__global__ void __launch_bounds__(threads)
    backward_dq_kernel(const __grid_constant__ BackwardTask task, int tiles) {
  const SharedMemory<columns> shared(dynamic_shared<unsigned char>());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp_row = thread / 32 * 16;
  const int block = static_cast<int>(blockIdx.x), batch_head = block / tiles,
            first_query = block % tiles * tile;
  const int kv_head = batch_head / (task.heads / task.kv_heads), queries = task.queries - first_query;
  const Index query_row = static_cast<Index>(batch_head) * task.queries + first_query;
  shared.template copy_async<T>(shared.q, task.q, query_row, queries, task.dim, thread);
  shared.template copy_async<T>(shared.grad_out, task.grad_out, query_row, queries, task.dim, thread);
  cp_async_commit();
  float dq[columns / 8][4] = {};  // of queries warp_row + g and + 8
  shared.load_rows(task, query_row, first_query, thread);
  __syncthreads();
  for (int range = 0; range < task.ranges; ++range) {
    const Visibility visible = shared.of->visibility.of_range(range);
    for (int first_key = visible.any.begin; first_key < visible.any.end; first_key += tile) {
      const Index key_row = static_cast<Index>(kv_head) * task.keys + first_key;
      const int keys = min(tile, visible.any.end - first_key);
      shared.template copy_async<T>(shared.k, task.k, key_row, keys, task.dim, thread);
      shared.template copy_async<T>(shared.v, task.v, key_row, keys, task.dim, thread);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      float p[tile / 8][4], ds[tile / 8][4];  // of queries warp_row + g and + 8, keys 8 j + 2 t and the next
      product_abt<T>(shared.q, warp_row, shared.k, lane, p);
      product_abt<T>(shared.grad_out, warp_row, shared.v, lane, ds);
      const Pairs pairs =
          pairs_of(task, range, batch_head % task.heads, first_key, visible.includes_all(first_key, tile));
      compute_p_and_ds<true>(pairs, range, *shared.of, warp_row, lane, p, ds);
#pragma unroll
      for (int k = 0; k < tile / 16; ++k) {
        unsigned a[4];
        pack<T>(ds, k, a);
        add_product<T>(a, shared.k, 16 * k, lane, dq);
      }
      __syncthreads();  // all threads have read these keys
    }
  }
#pragma unroll
  for (int j = 0; j < columns / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = warp_row + lane / 4 + e / 2 * 8, column = 8 * j + lane % 4 * 2 + e % 2;
      if (row < queries && column < task.dim)
        task.grad_q[(query_row + row) * task.dim + column] += task.scale * dq[j][e];
    }
}

template <bool atomic_dq>
void differentiate(const BackwardTask& task, Type type, const DeviceTraits&, StreamHandle stream) {
  const int of_keys = tiles_of_keys(task, tile), of_queries = blocks_of(task.queries, tile);
  if (of_keys == 0 || of_queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    const auto grid = [&](Index blocks) {
      return LaunchConfig{blocks * task.batch, threads, SharedMemory<columns>::bytes};
    };
    launch(backward_dkdv_kernel<T, columns, atomic_dq>, grid(of_keys * task.kv_heads), stream, task, of_keys);
    if constexpr (!atomic_dq)
      launch(backward_dq_kernel<T, columns>, grid(of_queries * task.heads), stream, task, of_queries);
  });
}

bool takes(const DeviceTraits& device, Type type, int dim) {
  return device.compute_capability >= 80 && type != Type::fp32 && dim >= piece && dim <= 128 &&
         dim % piece == 0 && device.shared_bytes_of_block >= SharedMemory<128>::bytes;
}

}  // namespace

extern const BackwardKernel backward_2_mma{2,    "mma", "mma.sync, a second grid for dQ",
                                           true, takes, differentiate<false>};

extern const BackwardKernel backward_2_mma_with_atomics{2,     "mma-atomics", "mma.sync, dQ by atomics",
                                                        false, takes,         differentiate<true>};

}  // namespace ring_attention::cuda
