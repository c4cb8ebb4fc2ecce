/// \file
/// What the Hopper kernels share, first half: which queries a block processes, the layout of shared memory, and the
/// copies of a producer.
///
/// Q, K and V are stored in parts of 64 columns, in rows of 128 bytes that TMA swizzles and wgmma reads.
#pragma once

#include "ring_attention/cuda/kernels/common/softmax.cuh"
#include "ring_attention/cuda/kernels/common/tile_order.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx_hopper.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda::hopper {

constexpr int group_queries = 64;
constexpr int tile_keys = 128;  ///< of all kernels but forward 7
constexpr int stages = 2;
constexpr int part_columns = 64;
constexpr int row_bytes = 2 * part_columns;
constexpr int q_part_bytes = group_queries * row_bytes;  ///< 64 columns of a warpgroup's queries
template <int keys>
constexpr int kv_part_bytes = keys * row_bytes;  ///< 64 columns of a tile of keys

/// Registers per thread in blocks of one producer warpgroup and two consumer warpgroups. All three start with 168,
/// which is all that a multiprocessor has. The sum must not be larger, or the last setmaxnreg_inc would never return.
constexpr int producer_registers = 24;
constexpr int consumer_registers = 240;
static_assert(producer_registers + 2 * consumer_registers <= 3 * (65536 / 384 / 8 * 8));

/// The warpgroup of a thread. The shuffle tells the compiler that it is the same for a whole warp, so that what depends
/// on it needs no registers of the threads.
__device__ inline int warpgroup_of(int thread) { return __shfl_sync(0xffffffffU, thread / 128, 0); }

/// The tensors as TMA sees them.
struct Maps {
  TensorMap q, k, v;
};

inline Maps maps_of(const AttentionTask& task, Type type, int keys_of_tile = tile_keys) {
  const Index q_heads = static_cast<Index>(task.batch) * task.heads;
  const Index kv_heads = static_cast<Index>(task.batch) * task.kv_heads;
  // A map of zero rows cannot be made. Without keys the map is never used, and any array will do.
  const bool none = task.keys == 0;
  const auto keys = [&](const void* array) {
    return make_tensor_map(none ? task.q : array, type, task.dim, none ? 1 : task.keys, kv_heads,
                           keys_of_tile);
  };
  return {make_tensor_map(task.q, type, task.dim, task.queries, q_heads, group_queries), keys(task.k),
          keys(task.v)};
}

/// Starts to copy a tile of `rows` rows, in boxes of box_rows, the box of the map. Rows behind the last and columns
/// from dim on become zero. The barrier must expect 2 * rows * columns bytes.
template <int columns, int rows, int box_rows>
__device__ __forceinline__ void tma_load_tile(unsigned to, const TensorMap& map, int first_row, int matrix,
                                              unsigned full) {
#pragma unroll 1
  for (int part = 0; part < columns / part_columns; ++part)
#pragma unroll 1
    for (int row = 0; row < rows; row += box_rows)
      tma_load_3d(to + static_cast<unsigned>((part * rows + row) * row_bytes), map, part * part_columns,
                  first_row + row, matrix, full);
}

/// The dynamic shared memory of a block, as an address and for wgmma, TMA and mbarriers.
struct BlockMemory {
  unsigned char* memory = dynamic_shared<unsigned char>();
  unsigned start = shared_address(memory);

  [[nodiscard]] __device__ unsigned at(int offset) const { return start + static_cast<unsigned>(offset); }
};

/// Shared memory for `groups` warpgroups, with buffers for `q_stages` tiles of queries and `stages` tiles of `keys` keys.
template <int columns, int groups, int q_stages = 1, int keys = tile_keys>
struct SharedMemory : BlockMemory {
  static constexpr int keys_of_tile = keys;
  static constexpr int parts = columns / part_columns;
  static constexpr int tile_queries = groups * group_queries;
  static constexpr int q_bytes = groups * parts * q_part_bytes;
  static constexpr int kv_bytes = parts * kv_part_bytes<keys>;
  using QueryVisibility = TileVisibility<tile_queries, 16>;

  static constexpr int k_offset = q_stages * q_bytes;
  static constexpr int v_offset = k_offset + stages * kv_bytes;
  static constexpr int visibility_offset = v_offset + stages * kv_bytes;
  static constexpr int barriers_offset =
      visibility_offset + q_stages * static_cast<int>(sizeof(QueryVisibility));
  static constexpr int kv_barrier = 2 * q_stages;  // the number of the first one of K and V
  static constexpr int bytes = barriers_offset + 8 * (kv_barrier + 4 * stages);

  __device__ SharedMemory() {}

  [[nodiscard]] __device__ unsigned q(int q_stage, int group) const {
    return at((q_stage * groups + group) * parts * q_part_bytes);
  }
  [[nodiscard]] __device__ unsigned k(int stage) const { return at(k_offset + stage * kv_bytes); }
  [[nodiscard]] __device__ unsigned v(int stage) const { return at(v_offset + stage * kv_bytes); }
  [[nodiscard]] __device__ QueryVisibility& visibility(int q_stage) const {
    return reinterpret_cast<QueryVisibility*>(memory + visibility_offset)[q_stage];
  }
  // mbarriers: "full" when data has arrived, "empty" when all consumers have read it.
  [[nodiscard]] __device__ unsigned q_full(int q_stage) const { return barrier(q_stage); }
  [[nodiscard]] __device__ unsigned q_empty(int q_stage) const { return barrier(q_stages + q_stage); }
  [[nodiscard]] __device__ unsigned k_full(int stage) const { return barrier(kv_barrier + stage); }
  [[nodiscard]] __device__ unsigned k_empty(int stage) const { return barrier(kv_barrier + stages + stage); }
  [[nodiscard]] __device__ unsigned v_full(int stage) const {
    return barrier(kv_barrier + 2 * stages + stage);
  }
  [[nodiscard]] __device__ unsigned v_empty(int stage) const {
    return barrier(kv_barrier + 3 * stages + stage);
  }

  /// One thread calls it before a __syncthreads. At "empty" each warp arrives once.
  __device__ void init_barriers() const {
    for (int i = 0; i < q_stages; ++i) {
      mbarrier_init(q_full(i), 1);
      mbarrier_init(q_empty(i), 4 * groups);
    }
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(k_full(i), 1);
      mbarrier_init(k_empty(i), 4 * groups);
      mbarrier_init(v_full(i), 1);
      mbarrier_init(v_empty(i), 4 * groups);
    }
    mbarrier_init_fence();
  }

  // One thread starts these copies. `other_bytes` is the size of its other copies that arrive at the same barrier.
  __device__ void load_q(const TensorMap& map, const QueryTile& q_tile, int q_stage,
                         int other_bytes = 0) const {
    mbarrier_arrive_expect_tx(q_full(q_stage), static_cast<unsigned>(q_bytes + other_bytes));
#pragma unroll 1
    for (int group = 0; group < groups; ++group)
      tma_load_tile<columns, group_queries, group_queries>(q(q_stage, group), map,
                                                           q_tile.first_query + group * group_queries,
                                                           q_tile.batch_head, q_full(q_stage));
  }
  __device__ void load_kv(const TensorMap& map, unsigned to, unsigned full, int first_key,
                          int batch_kv_head) const {
    mbarrier_arrive_expect_tx(full, kv_bytes);
    tma_load_tile<columns, keys, keys>(to, map, first_key, batch_kv_head, full);
  }

 private:
  [[nodiscard]] __device__ unsigned barrier(int number) const { return at(barriers_offset + 8 * number); }
};

/// Copies all tiles of keys that some query of a tile sees. One thread calls it. `number` counts the tiles of keys of
/// this block. K of a tile comes before V of the previous one, because the consumers release K first: they read it before
/// a softmax, and V after it.
template <class Memory>
__device__ void load_all_keys(const Memory& shared, const AttentionTask& task, const Maps& maps,
                              const QueryTile& q_tile, const typename Memory::QueryVisibility& visibility,
                              int& number) {
  // The parity of the previous phase. In the first round the wait returns at once.
  const auto before = [](int n) { return static_cast<unsigned>(n / stages % 2) ^ 1U; };
  const auto load_v = [&](int n, int first_key) {
    mbarrier_wait(shared.v_empty(n % stages), before(n));
    shared.load_kv(maps.v, shared.v(n % stages), shared.v_full(n % stages), first_key,
                   q_tile.batch_kv_head(task));
  };
  int first_of_v = no_key;
  for (KeyTiles tile(visibility, task.ranges, Memory::keys_of_tile); tile.more(); tile.next(), ++number) {
    const int stage = number % stages;
    mbarrier_wait(shared.k_empty(stage), before(number));
    shared.load_kv(maps.k, shared.k(stage), shared.k_full(stage), tile.first(), q_tile.batch_kv_head(task));
    if (first_of_v != no_key) load_v(number - 1, first_of_v);
    first_of_v = tile.first();
  }
  if (first_of_v != no_key) load_v(number - 1, first_of_v);
}

/// What the Hopper kernels support. `Memories` are their largest shared memories.
template <class... Memories>
[[nodiscard]] bool takes(const DeviceTraits& device, Type type, int dim) {
  return device.compute_capability == 90 && type != Type::fp32 && dim >= 8 && dim <= 128 && dim % 8 == 0 &&
         ((device.shared_bytes_of_block >= Memories::bytes) && ...);
}

/// Enqueues the kernel choose<T, columns>() with one block of `threads` threads per tile of queries.
template <int threads, class Choose>
void launch_on_tiles(const ForwardTask& task, Type type, StreamHandle stream, Choose choose) {
  if (task.queries == 0) return;
  with_half_type_and_columns(type, task.dim, [&]<class T, int columns>() {
    using Memory = SharedMemory<columns, 2>;
    const TileOrder order = order_of_queries(task, Memory::tile_queries);
    launch(choose.template operator()<T, columns>(), {order.count, threads, Memory::bytes}, stream, task,
           maps_of(task, type), order);
  });
}

}  // namespace ring_attention::cuda::hopper
