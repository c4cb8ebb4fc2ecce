/// \file
/// Tiles of 16-bit numbers in shared memory, for ldmatrix and mma.sync.
///
/// ldmatrix reads eight rows at once, 16 bytes of each. In a plain layout rows of 128 or 256 bytes put these eight
/// pieces into the same four of the 32 banks, and the read takes eight turns. So piece c of row r lies where piece
/// c ^ (r % 8) would:
///
///      row 0   0 1 2 3 4 5 6 7
///      row 1   1 0 3 2 5 4 7 6       each column, read downwards, has every piece of
///      row 2   2 3 0 1 6 7 4 5       the banks once
///      ...
#pragma once

#include "ring_attention/cuda/kernels.hpp"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {

constexpr int piece = 8;         ///< numbers in 16 bytes
constexpr int piece_bytes = 16;  ///< what a thread copies and what ldmatrix reads of a row

/// Rows of `columns` numbers (64 or 128) from `start` on, an address of shared memory that is a multiple of a row.
template <int columns>
struct SwizzledTile {
  static constexpr int row_bytes = 2 * columns;
  unsigned start;

  [[nodiscard]] __device__ unsigned address(int row, int column_piece) const {
    return start + static_cast<unsigned>(row * row_bytes + ((column_piece ^ (row & 7)) * piece_bytes));
  }

  /// Begins to copy `rows` rows of `dim` numbers; those from `valid` on, and the columns from `dim` on, become zero.
  /// All `threads` take part; thread is the caller's number.
  template <int rows, int threads, class T>
  __device__ void copy_async(const T* from, int valid, int dim, int thread) const {
    constexpr int pieces = columns / piece;
    static_assert(rows * pieces % threads == 0);
    const int column = thread % pieces;
    const bool in_row = column * piece < dim;
#pragma unroll
    for (int i = 0; i < rows * pieces / threads; ++i) {
      const int row = thread / pieces + i * (threads / pieces);
      const bool real = in_row && row < valid;
      cp_async_16(address(row, column), real ? from + static_cast<Index>(row) * dim + column * piece : from,
                  real);
    }
  }
};

/// Where a lane's row for ldmatrix begins. Rows and pieces are added at compile time: the swizzle is an exclusive or,
/// and so is the sum of an even piece and a lane's own.
template <int columns>
class Fragments {
 public:
  /// An a of 16 rows and 16 columns: at(row, 2 k) are rows `row` .. of columns 16 k .. . row is a multiple of 8.
  __device__ static Fragments a(SwizzledTile<columns> tile, int lane) { return {tile, lane % 16, lane / 16}; }
  /// The b of a product with the transpose: at(row, 2 k) are b0, b1 for rows 0-7 and b0, b1 for rows 8-15.
  __device__ static Fragments b_of_rows(SwizzledTile<columns> tile, int lane) {
    return {tile, lane / 16 * 8 + lane % 8, lane / 8 % 2};
  }
  /// The b of a product with the tile itself, through the transposing load: at(16 k, 2 n) are b0, b1 for columns
  /// 16 n - 16 n + 7 and b0, b1 for the next eight.
  __device__ static Fragments b_of_columns(SwizzledTile<columns> tile, int lane) {
    return {tile, lane % 16, lane / 16};
  }
  /// The a of a product with the transpose, through the transposing load: at(16 k, 2 m) is the a of rows (once
  /// columns) 16 m .. and columns (once rows) 16 k .. .
  __device__ static Fragments a_of_columns(SwizzledTile<columns> tile, int lane) {
    return {tile, lane / 16 * 8 + lane % 8, lane / 8 % 2};
  }

  [[nodiscard]] __device__ unsigned at(int row, int even_piece) const {
    return (lane_start_ ^ static_cast<unsigned>(even_piece * piece_bytes)) +
           static_cast<unsigned>(row * SwizzledTile<columns>::row_bytes);
  }

 private:
  __device__ Fragments(SwizzledTile<columns> tile, int lane_row, int lane_piece)
      : lane_start_(tile.address(lane_row, lane_piece)) {}

  unsigned lane_start_;
};

}  // namespace ring_attention::cuda
