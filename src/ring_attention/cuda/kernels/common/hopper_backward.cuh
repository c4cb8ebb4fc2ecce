/// \file
/// What both grids of backward_3_wgmma.cu have in shared memory. Two tiles stay, of 128 rows, and pairs of tiles pass by in
/// two stages, with what is to be known of them:
///
///                     stay      pass by
///      keys own       K, V      Q, dO
///      queries own    Q, dO     K, V
#pragma once

#include "ring_attention/cuda/kernels/common/backward_pairs.cuh"
#include "ring_attention/cuda/kernels/common/hopper_products.cuh"

namespace ring_attention::cuda::hopper {

constexpr int tile_rows = 128;  ///< of what stays; a warpgroup has 64 of them
constexpr int backward_threads = 3 * 128;

/// The tensors of the backward as the copy engine sees them.
struct BackwardMaps {
  Maps attention;
  TensorMap grad_out;
};

inline BackwardMaps maps_of(const BackwardTask& task, Type type) {
  return {maps_of(static_cast<const AttentionTask&>(task), type),
          make_tensor_map(task.grad_out, type, task.dim, task.queries,
                          static_cast<Index>(task.batch) * task.heads, group_queries)};
}

/// \tparam passing_rows  of each tile that passes by
/// \tparam Notes, notes  what else stands there, and how many of it
/// \tparam more_bytes    at the end of the tiles, a multiple of 1024
template <int columns, int passing_rows, class Notes, int notes, int more_bytes>
struct BackwardMemory {
  static constexpr int rows = passing_rows;
  static constexpr int part_bytes = tile_rows * row_bytes;             ///< 64 columns of what stays
  static constexpr int passing_part_bytes = passing_rows * row_bytes;  ///< 64 columns of what passes by
  static constexpr int tile_bytes = columns / part_columns * part_bytes;
  static constexpr int passing_bytes = columns / part_columns * passing_part_bytes;

  static constexpr int passing_offset = 2 * tile_bytes;
  static constexpr int more_offset = passing_offset + stages * 2 * passing_bytes;
  static constexpr int notes_offset = more_offset + more_bytes;
  static constexpr int barriers_offset = notes_offset + notes * static_cast<int>(sizeof(Notes));
  static constexpr int bytes = barriers_offset + 8 * (1 + 2 * stages);

  unsigned char* memory;
  unsigned start;

  __device__ BackwardMemory() : memory(dynamic_shared<unsigned char>()), start(shared_address(memory)) {}

  /// K and V (or Q and dO): a warpgroup's rows of them, or all.
  [[nodiscard]] __device__ unsigned staying(int which, int group = 0) const {
    return start + static_cast<unsigned>(which * tile_bytes + group * 64 * row_bytes);
  }
  [[nodiscard]] __device__ unsigned passing(int stage, int which) const {
    return start + static_cast<unsigned>(passing_offset + (2 * stage + which) * passing_bytes);
  }
  [[nodiscard]] __device__ unsigned more() const { return start + more_offset; }
  [[nodiscard]] __device__ Notes& note(int i) const {
    return reinterpret_cast<Notes*>(memory + notes_offset)[i];
  }
  // Barriers: "full" when data has arrived, "empty" when nobody reads it any more.
  [[nodiscard]] __device__ unsigned staying_full() const { return start + barriers_offset; }
  [[nodiscard]] __device__ unsigned full(int stage) const {
    return start + static_cast<unsigned>(barriers_offset + 8 * (1 + stage));
  }
  [[nodiscard]] __device__ unsigned empty(int stage) const { return full(stages + stage); }

  /// One thread, before a barrier of the block. A warp that has read arrives once.
  __device__ void init_barriers() const {
    mbarrier_init(staying_full(), 1);
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), 8);
    }
    mbarrier_init_fence();
  }

  // One thread starts to copy two tiles, from first_row on; with those that pass by more_to_come bytes will come by its
  // other copies. The maps have boxes of box_rows.
  template <int box_rows>
  __device__ void copy_staying(const TensorMap& one, const TensorMap& other, int first_row,
                               int matrix) const {
    mbarrier_arrive_expect_tx(staying_full(), 2 * tile_bytes);
    copy_tile_async<columns, tile_rows, box_rows>(staying(0), one, first_row, matrix, staying_full());
    copy_tile_async<columns, tile_rows, box_rows>(staying(1), other, first_row, matrix, staying_full());
  }
  template <int box_rows>
  __device__ void copy_passing(int stage, const TensorMap& one, const TensorMap& other, int first_row,
                               int matrix, int more_to_come = 0) const {
    mbarrier_arrive_expect_tx(full(stage), static_cast<unsigned>(2 * passing_bytes + more_to_come));
    copy_tile_async<columns, rows, box_rows>(passing(stage, 0), one, first_row, matrix, full(stage));
    copy_tile_async<columns, rows, box_rows>(passing(stage, 1), other, first_row, matrix, full(stage));
  }
};

/// To two numbers in device memory that no other thread adds to.
__device__ __forceinline__ void add_to(float* to, float first, float second) {
  auto* pair = reinterpret_cast<float2*>(to);
  *pair = {pair->x + first, pair->y + second};
}

}  // namespace ring_attention::cuda::hopper
