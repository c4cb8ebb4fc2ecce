/// \file
/// What the Hopper steps of the ladder have in common: where things lie in shared memory, what a producer brings, and
/// what a warpgroup does with it.
///
/// A warpgroup takes 64 queries, each warp 16 of them, against tiles of 128 keys. Q, K and V lie in parts of 64 columns,
/// in rows of 128 bytes that the copy engine swizzles and wgmma reads:
///
///      S (64 x 128) = Q (shared) K^T (shared)     a row of K is a column of b
///      P            = 2^(S - m), packed           stays in registers
///      O (64 x dim) += P (registers) V (shared)   a row of V is a row of b: "b by rows"
#pragma once

#include "ring_attention/cuda/kernels/softmax.cuh"
#include "ring_attention/cuda/launch.cuh"
#include "ring_attention/cuda/ptx_hopper.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda::hopper {

constexpr int group_queries = 64;
constexpr int tile_keys = 128;
constexpr int stages = 2;
constexpr int part_columns = 64;                   ///< 128 bytes
constexpr int q_part_bytes = group_queries * 128;  ///< 64 columns of a warpgroup's queries
constexpr int kv_part_bytes = tile_keys * 128;     ///< 64 columns of a tile of keys

/// The tensors as the copy engine sees them.
struct Maps {
  TensorMap q, k, v;
};

inline Maps maps_of(const ForwardTask& task, Type type) {
  const Index q_heads = static_cast<Index>(task.batch) * task.heads;
  const Index kv_heads = static_cast<Index>(task.batch) * task.kv_heads;
  // A shard without keys is never read; a map of it cannot be made.
  const bool none = task.keys == 0;
  const auto keys = [&](const void* array) {
    return make_tensor_map(none ? task.q : array, type, task.dim, none ? 1 : task.keys, kv_heads, tile_keys);
  };
  return {make_tensor_map(task.q, type, task.dim, task.queries, q_heads, group_queries), keys(task.k),
          keys(task.v)};
}

constexpr Index cached_bytes = 24 << 20;  ///< of K and V, that surely stay in the L2 cache

/// A tile of queries of one head. Heads come in sections whose K and V stay in the cache together. In a section the last
/// tiles come first: they see most keys under a causal mask, so the blocks end together.
struct Place {
  int batch_head, first_query;

  __device__ Place(const AttentionTask& task, int number, int tile_queries) {
    const int tiles = (task.queries + tile_queries - 1) / tile_queries, group = task.heads / task.kv_heads;
    const Index pairs = cached_bytes / (4 * static_cast<Index>(task.keys + 1) * task.dim);
    const int all_heads = task.batch * task.heads;
    const int section_heads = pairs * group < all_heads ? max(static_cast<int>(pairs), 1) * group : all_heads;
    const int section = number / (tiles * section_heads),
              in_section = number - section * tiles * section_heads;
    const int heads = min(section_heads, all_heads - section * section_heads);
    batch_head = section * section_heads + in_section % heads;
    first_query = (tiles - 1 - in_section / heads) * tile_queries;
  }
  [[nodiscard]] __device__ Index query_row(const AttentionTask& task) const {
    return static_cast<Index>(batch_head) * task.queries + first_query;
  }
  [[nodiscard]] __device__ int batch_kv_head(const AttentionTask& task) const {
    return batch_head / (task.heads / task.kv_heads);
  }
};

inline int places_of(const AttentionTask& task, int tile_queries) {
  return blocks_of(task.queries, tile_queries) * task.batch * task.heads;
}

/// Shared memory for `groups` warpgroups and `items` tiles of queries under way.
template <int columns, int groups, int items = 1>
struct SharedMemory {
  static constexpr int parts = columns / part_columns;
  static constexpr int tile_queries = groups * group_queries;
  static constexpr int q_bytes = groups * parts * q_part_bytes;
  static constexpr int kv_bytes = parts * kv_part_bytes;
  using QueryExtents = Extents<tile_queries, 16>;

  static constexpr int k_offset = items * q_bytes;
  static constexpr int v_offset = k_offset + stages * kv_bytes;
  static constexpr int extents_offset = v_offset + stages * kv_bytes;
  static constexpr int barriers_offset = extents_offset + items * static_cast<int>(sizeof(QueryExtents));
  static constexpr int barriers = 2 * items + 4 * stages;
  static constexpr int bytes = barriers_offset + 8 * barriers;

  unsigned char* memory;
  unsigned start;

  __device__ SharedMemory() : memory(dynamic_shared<unsigned char>()), start(shared_address(memory)) {}

  [[nodiscard]] __device__ unsigned q(int item, int group) const {
    return start + static_cast<unsigned>((item * groups + group) * parts * q_part_bytes);
  }
  [[nodiscard]] __device__ unsigned k(int stage) const {
    return start + static_cast<unsigned>(k_offset + stage * kv_bytes);
  }
  [[nodiscard]] __device__ unsigned v(int stage) const {
    return start + static_cast<unsigned>(v_offset + stage * kv_bytes);
  }
  [[nodiscard]] __device__ QueryExtents& extents(int item) const {
    return reinterpret_cast<QueryExtents*>(memory + extents_offset)[item];
  }
  // Barriers: "full" when data has arrived, "empty" when nobody reads it any more.
  [[nodiscard]] __device__ unsigned q_full(int item) const { return barrier(item); }
  [[nodiscard]] __device__ unsigned q_empty(int item) const { return barrier(items + item); }
  [[nodiscard]] __device__ unsigned k_full(int stage) const { return barrier(2 * items + stage); }
  [[nodiscard]] __device__ unsigned k_empty(int stage) const { return barrier(2 * items + stages + stage); }
  [[nodiscard]] __device__ unsigned v_full(int stage) const {
    return barrier(2 * items + 2 * stages + stage);
  }
  [[nodiscard]] __device__ unsigned v_empty(int stage) const {
    return barrier(2 * items + 3 * stages + stage);
  }

  /// One thread, before a barrier of the block. A warp that has read arrives once.
  __device__ void init_barriers() const {
    for (int i = 0; i < items; ++i) {
      barrier_init(q_full(i), 1);
      barrier_init(q_empty(i), 4 * groups);
    }
    for (int i = 0; i < stages; ++i) {
      barrier_init(k_full(i), 1);
      barrier_init(k_empty(i), 4 * groups);
      barrier_init(v_full(i), 1);
      barrier_init(v_empty(i), 4 * groups);
    }
    barrier_init_done();
  }

  // What one thread asks the copy engine for. Rows behind the last and columns from dim on become zero.
  __device__ void copy_q(const Maps& maps, const Place& place, int item) const {
    barrier_arrive_expecting(q_full(item), q_bytes);
    for (int group = 0; group < groups; ++group)
      for (int part = 0; part < parts; ++part)
        copy_box_async(q(item, group) + static_cast<unsigned>(part * q_part_bytes), maps.q,
                       part * part_columns, place.first_query + group * group_queries, place.batch_head,
                       q_full(item));
  }
  __device__ void copy_kv(const TensorMap& map, unsigned to, unsigned full, int first_key,
                          int batch_kv_head) const {
    barrier_arrive_expecting(full, kv_bytes);
    for (int part = 0; part < parts; ++part)
      copy_box_async(to + static_cast<unsigned>(part * kv_part_bytes), map, part * part_columns, first_key,
                     batch_kv_head, full);
  }

 private:
  [[nodiscard]] __device__ unsigned barrier(int number) const {
    return start + static_cast<unsigned>(barriers_offset + 8 * number);
  }
};

/// A thread's part of a warpgroup's 64 queries: of rows g and g + 8 of its warp's 16, with g = lane / 4. All functions are
/// inlined, because only then the arrays are registers.
template <class T, int columns>
struct Queries {
  const ForwardTask& task;
  Place place;
  int group_query;  ///< of the warpgroup's first query in the tile
  int thread;       ///< in the warpgroup

  __device__ Queries(const ForwardTask& a_task, const Place& a_place, int group, int thread_of_group)
      : task(a_task), place(a_place), group_query(group * group_queries), thread(thread_of_group) {}

  float s[tile_keys / 2];
  float o[columns / 2];
  unsigned p[tile_keys / 16][4];
  RowState row[2];

  [[nodiscard]] __device__ int lane() const { return thread % 32; }
  [[nodiscard]] __device__ int row_in_tile(int i) const {
    return group_query + thread / 32 * 16 + lane() / 4 + 8 * i;
  }
  [[nodiscard]] __device__ bool exists(int i) const {
    return place.first_query + row_in_tile(i) < task.queries;
  }

  /// Empty, or what the step before left.
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool carry = !task.fresh && exists(i);
      const Index at = place.query_row(task) + row_in_tile(i);
      row[i] = RowState::begin(carry, task.m + at, task.l + at, lane() % 4);
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        const int column = 8 * j + 2 * (lane() % 4);
        float2 pair{0, 0};
        if (carry && column < task.dim)
          pair = *reinterpret_cast<const float2*>(task.o + at * task.dim + column);
        o[4 * j + 2 * i] = pair.x;
        o[4 * j + 2 * i + 1] = pair.y;
      }
    }
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float l = row[i].sum_of_quad();
      if (!exists(i)) continue;
      const Index at = place.query_row(task) + row_in_tile(i);
      if (lane() % 4 == 0) {
        task.m[at] = row[i].m;
        task.l[at] = l;
      }
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        const int column = 8 * j + 2 * (lane() % 4);
        if (column < task.dim)
          *reinterpret_cast<float2*>(task.o + at * task.dim + column) = {o[4 * j + 2 * i],
                                                                         o[4 * j + 2 * i + 1]};
      }
    }
  }

  /// Starts s = q k^T.
  __device__ __forceinline__ void start_scores(unsigned q, unsigned k) {
    products_begin();
#pragma unroll
    for (int d = 0; d < columns / 16; ++d)
      multiply_async<T, 0, 0>(
          s, matrix_descriptor(q + static_cast<unsigned>(d / 4 * q_part_bytes + d % 4 * 32), 16),
          matrix_descriptor(k + static_cast<unsigned>(d / 4 * kv_part_bytes + d % 4 * 32), 16), d > 0);
    products_commit();
  }

  /// Starts o += p v.
  __device__ __forceinline__ void start_values(unsigned v) {
    products_begin();
#pragma unroll
    for (int k = 0; k < tile_keys / 16; ++k)
      multiply_async<T, 1>(o, p[k], matrix_descriptor(v + static_cast<unsigned>(k * 16 * 128), kv_part_bytes),
                           true);
    products_commit();
  }

  /// Makes weights of s, which stay in s, and raises m. o is to be multiplied by `keep`, row by row.
  template <class QueryExtents>
  __device__ __forceinline__ void weigh(const QueryExtents& extents, int run, int first_key,
                                        float (&keep)[2]) {
    const float scale = task.scale * log2_e;  // scores in units of log 2
    const float slope =
        task.alibi_slope == nullptr ? 0 : log2_e * task.alibi_slope[place.batch_head % task.heads];
    const Extent extent = extents.of_group[run][(group_query + thread / 32 * 16) / 16];
    if (slope == 0 && scale >= 0 && extent.sees_all(first_key, tile_keys)) {
      weigh_rows(scale, keep);
      return;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const CarefulRow careful(task, task.run[run], scale, slope, extents.visible[run][row_in_tile(i)],
                               min(place.first_query + row_in_tile(i), task.queries - 1),
                               first_key + 2 * (lane() % 4));
#pragma unroll
      for (int j = 0; j < tile_keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) s[4 * j + 2 * i + e] = careful.score(s[4 * j + 2 * i + e], 8 * j + e);
    }
    weigh_rows(1, keep);
  }

  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int k = 0; k < tile_keys / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = packed<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    products_will_read(p);
  }

  __device__ __forceinline__ void rescale(const float (&keep)[2]) {
#pragma unroll
    for (int e = 0; e < columns / 2; ++e) o[e] *= keep[e / 2 % 2];
  }

 private:
  __device__ __forceinline__ void weigh_rows(float scale, float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = -infinity;
#pragma unroll
      for (int j = 0; j < tile_keys / 8; ++j) top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
      keep[i] = row[i].raise(top * scale);
      const float origin = rescale_from(row[i].m);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < tile_keys / 8; ++j)
#pragma unroll
        for (int e = 4 * j + 2 * i; e < 4 * j + 2 * i + 2; ++e) {
          s[e] = exp2_approximate(fmaf(s[e], scale, -origin));
          sum += s[e];
        }
      row[i].l += sum;
    }
  }
};

/// What the Hopper steps can do.
template <class SharedMemory128>
[[nodiscard]] bool takes(const DeviceTraits& device, Type type, int dim) {
  return device.compute_capability == 90 && type != Type::fp32 && dim >= 8 && dim <= 128 && dim % 8 == 0 &&
         device.shared_bytes_of_block >= SharedMemory128::bytes;
}

}  // namespace ring_attention::cuda::hopper
