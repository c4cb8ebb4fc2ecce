/// \file
/// The shared memory of both grids of backward_3_wgmma.cu. Two tiles of 128 rows are resident for the life of a block.
/// Pairs of tiles are streamed through two stages, with their metadata:
///
///      the block owns     resident    streamed
///      keys               K, V        Q, dO
///      queries            Q, dO       K, V
#pragma once

#include "ring_attention/cuda/kernels/common/backward_pairs.cuh"
#include "ring_attention/cuda/kernels/common/hopper_products.cuh"

namespace ring_attention::cuda::hopper {

constexpr int tile_rows = 128;  ///< of the resident tiles; a warpgroup has 64 of them
constexpr int backward_threads = 3 * 128;

/// The tensors of the backward as TMA sees them.
struct BackwardMaps {
  Maps attention;
  TensorMap grad_out;
};

inline BackwardMaps maps_of(const BackwardTask& task, Type type) {
  return {maps_of(static_cast<const AttentionTask&>(task), type),
          make_tensor_map(task.grad_out, type, task.dim, task.queries,
                          static_cast<Index>(task.batch) * task.heads, group_queries)};
}

/// \tparam streamed_rows  of each streamed tile
/// \tparam Metadata, metadata_count  a struct in shared memory, and the number of its copies
/// \tparam extra_bytes  behind the tiles, a multiple of 1024
template <int columns, int streamed_rows, class Metadata, int metadata_count, int extra_bytes>
struct BackwardMemory : BlockMemory {
  static constexpr int rows = streamed_rows;
  static constexpr int part_bytes = tile_rows * row_bytes;               ///< 64 columns of a resident tile
  static constexpr int streamed_part_bytes = streamed_rows * row_bytes;  ///< 64 columns of what passes by
  static constexpr int tile_bytes = columns / part_columns * part_bytes;
  static constexpr int streamed_bytes = columns / part_columns * streamed_part_bytes;

  static constexpr int streamed_offset = 2 * tile_bytes;
  static constexpr int extra_offset = streamed_offset + stages * 2 * streamed_bytes;
  static constexpr int metadata_offset = extra_offset + extra_bytes;
  static constexpr int barriers_offset =
      metadata_offset + metadata_count * static_cast<int>(sizeof(Metadata));
  static constexpr int bytes = barriers_offset + 8 * (1 + 2 * stages);

  __device__ BackwardMemory() {}

  /// Resident tile `which` (0 or 1), from the first row of a warpgroup on.
  [[nodiscard]] __device__ unsigned resident(int which, int group = 0) const {
    return at(which * tile_bytes + group * 64 * row_bytes);
  }
  [[nodiscard]] __device__ unsigned streamed(int stage, int which) const {
    return at(streamed_offset + (2 * stage + which) * streamed_bytes);
  }
  [[nodiscard]] __device__ unsigned extra() const { return start + extra_offset; }
  [[nodiscard]] __device__ Metadata& metadata(int i) const {
    return reinterpret_cast<Metadata*>(memory + metadata_offset)[i];
  }
  // mbarriers: "full" when data has arrived, "empty" when all consumers have read it.
  [[nodiscard]] __device__ unsigned resident_full() const { return start + barriers_offset; }
  [[nodiscard]] __device__ unsigned full(int stage) const { return at(barriers_offset + 8 * (1 + stage)); }
  [[nodiscard]] __device__ unsigned empty(int stage) const { return full(stages + stage); }

  /// One thread calls it before a __syncthreads. At "empty" each warp that reads arrives once.
  __device__ void init_barriers(unsigned reading_warps = 8) const {
    mbarrier_init(resident_full(), 1);
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), reading_warps);
    }
    mbarrier_init_fence();
  }

  // One thread starts to copy two tiles, from first_row on. The maps have boxes of box_rows. `other_bytes` is the size
  // of its other copies that arrive at the same barrier.
  template <int box_rows>
  __device__ void load_resident(const TensorMap& one, const TensorMap& other, int first_row,
                                int matrix) const {
    mbarrier_arrive_expect_tx(resident_full(), 2 * tile_bytes);
    tma_load_tile<columns, tile_rows, box_rows>(resident(0), one, first_row, matrix, resident_full());
    tma_load_tile<columns, tile_rows, box_rows>(resident(1), other, first_row, matrix, resident_full());
  }
  template <int box_rows>
  __device__ void load_streamed(int stage, const TensorMap& one, const TensorMap& other, int first_row,
                                int matrix, int other_bytes = 0) const {
    mbarrier_arrive_expect_tx(full(stage), static_cast<unsigned>(2 * streamed_bytes + other_bytes));
    tma_load_tile<columns, rows, box_rows>(streamed(stage, 0), one, first_row, matrix, full(stage));
    tma_load_tile<columns, rows, box_rows>(streamed(stage, 1), other, first_row, matrix, full(stage));
  }
};

/// Adds to two neighbouring numbers in device memory that no other thread accesses.
__device__ __forceinline__ void add_to(float* to, float first, float second) {
  auto* pair = reinterpret_cast<float2*>(to);
  *pair = {pair->x + first, pair->y + second};
}

}  // namespace ring_attention::cuda::hopper
