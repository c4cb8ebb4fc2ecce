/// \file
/// Tiles of 16-bit numbers in shared memory, for ldmatrix and mma.sync.
///
/// ldmatrix reads eight rows at once, 16 bytes of each. In a plain layout with rows of 128 or 256 bytes these eight
/// pieces are in the same four of the 32 banks, and the read takes eight accesses. The swizzle stores piece c of row r
/// at position c ^ (r % 8):
///
///      row 0   0 1 2 3 4 5 6 7
///      row 1   1 0 3 2 5 4 7 6       the pieces c of eight rows are at eight different
///      row 2   2 3 0 1 6 7 4 5       positions, so they are in different banks
///      ...
#pragma once

#include "ring_attention/cuda/kernels.hpp"
#include "ring_attention/cuda/ptx.cuh"

namespace ring_attention::cuda {

constexpr int piece = 8;         ///< 16-bit numbers in 16 bytes
constexpr int piece_bytes = 16;  ///< what a thread copies at once, and what ldmatrix reads of a row

/// Rows of `columns` numbers (64 or 128) in shared memory. `start` is a multiple of the bytes of a row.
template <int columns>
struct SwizzledTile {
  static constexpr int row_bytes = 2 * columns;
  unsigned start;

  [[nodiscard]] __device__ unsigned address(int row, int column_piece) const {
    return start + static_cast<unsigned>(row * row_bytes + ((column_piece ^ (row & 7)) * piece_bytes));
  }

  /// Starts to copy `rows` rows of `dim` numbers. Rows from `valid` on and columns from `dim` on become zero. All
  /// `threads` threads call it; `thread` is the caller's index.
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

/// The address of a lane's row for ldmatrix. Rows and pieces are added at compile time: the swizzle is an exclusive or,
/// and adding an even piece to the lane's own piece is one, too.
template <int columns>
class Fragments {
 public:
  /// Operand a, 16 rows and 16 columns: at(row, 2 k) begins at row `row` and column 16 k. row is a multiple of 8.
  __device__ static Fragments a(SwizzledTile<columns> tile, int lane) { return {tile, lane % 16, lane / 16}; }
  /// Operand b of a product with the tile's transpose: at(row, 2 k) gives b0, b1 for rows 0-7 and b0, b1 for rows 8-15.
  __device__ static Fragments b_of_rows(SwizzledTile<columns> tile, int lane) {
    return {tile, lane / 16 * 8 + lane % 8, lane / 8 % 2};
  }
  /// Operand b of a product with the tile, for ldmatrix.trans: at(16 k, 2 n) gives b0, b1 for the eight columns from 16
  /// n on and b0, b1 for the next eight.
  __device__ static Fragments b_of_columns(SwizzledTile<columns> tile, int lane) {
    return {tile, lane % 16, lane / 16};
  }
  /// Operand a of a product with the tile's transpose, for ldmatrix.trans: at(16 k, 2 m) gives a for the tile's columns
  /// from 16 m on and its rows from 16 k on.
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
