/// \file
/// What the fp32 kernels share: tiles in shared memory and two products, computed by 16 x 16 threads.
///
///     s[i][j]  = sum_c a[i][c] b[j][c]     product_abt        thread (y, x): i = y + 16.., j = x + 16..
///     o[i][c] += sum_j p[i][j] v[j][c]     add_weighted_rows  thread (y, x): i = y + 16.., c = 4 x + 64..
///
/// A row of a tile is padded by one access (4 floats). So 16 threads that read 16 rows access 8 different groups of
/// banks at a time, the maximum for 16-byte accesses.
#pragma once

#include "ring_attention/cuda/keys.cuh"
#include "ring_attention/cuda/types.cuh"

namespace ring_attention::cuda {

constexpr int side = 16;  // the threads of a block are side x side
constexpr int threads = side * side;

/// A tile [rows][columns] in shared memory.
template <int rows, int columns>
struct SharedTile {
  static constexpr int stride = columns + 4;
  static constexpr int floats = rows * stride;
  float* data;

  [[nodiscard]] __device__ float& at(int row, int column) const { return data[row * stride + column]; }
  /// The four elements that begin at a column that is a multiple of 4.
  [[nodiscard]] __device__ float4 four(int row, int column) const {
    return *reinterpret_cast<const float4*>(data + row * stride + column);
  }

  /// Copies `count` rows of `dim` elements as fp32, from element `first` of an array of `type`, and fills the rest of the
  /// tile with zeros. All threads call it. The type is no template parameter of the kernels, because only copies depend
  /// on it: each kernel is compiled once and not three times.
  __device__ void load(const void* array, Type type, Index first, int count, int dim) const {
    constexpr int at_once = 4;  // loads in flight
    static_assert(rows * columns % (at_once * threads) == 0);
    for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += at_once * threads) {
      float values[at_once];
      const auto fetch = [&](const auto* from) {
#pragma unroll
        for (int n = 0; n < at_once; ++n) {
          const int row = (i + n * threads) / columns, column = (i + n * threads) % columns;
          values[n] = row < count && column < dim
                          ? widened(from[first + static_cast<Index>(row) * dim + column])
                          : 0.0F;
        }
      };
      if (type == Type::fp32)
        fetch(static_cast<const float*>(array));
      else if (type == Type::bf16)
        fetch(static_cast<const __nv_bfloat16*>(array));
      else
        fetch(static_cast<const __half*>(array));
#pragma unroll
      for (int n = 0; n < at_once; ++n)
        at((i + n * threads) / columns, (i + n * threads) % columns) = values[n];
    }
  }
};

/// The position of a thread in the block.
struct ThreadPlace {
  int y = static_cast<int>(threadIdx.x) / side;
  int x = static_cast<int>(threadIdx.x) % side;
};

__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ inline void add_scaled(float4& sum, float weight, float4 row) {
  sum.x += weight * row.x;
  sum.y += weight * row.y;
  sum.z += weight * row.z;
  sum.w += weight * row.w;
}
__device__ inline void scale_by(float4& sum, float factor) {
  sum.x *= factor;
  sum.y *= factor;
  sum.z *= factor;
  sum.w *= factor;
}

/// s[i][j] = row y + 16 i of a times row x + 16 j of b.
template <int rows_a, int rows_b, int columns>
__device__ void product_abt(const ThreadPlace& thread, const SharedTile<rows_a, columns>& a,
                            const SharedTile<rows_b, columns>& b, float (&s)[rows_a / side][rows_b / side]) {
#pragma unroll
  for (auto& row : s)
#pragma unroll
    for (float& entry : row) entry = 0;
#pragma unroll 4
  for (int c = 0; c < columns; c += 4) {
    float4 of_b[rows_b / side];
#pragma unroll
    for (int j = 0; j < rows_b / side; ++j) of_b[j] = b.four(thread.x + side * j, c);
#pragma unroll
    for (int i = 0; i < rows_a / side; ++i) {
      const float4 of_a = a.four(thread.y + side * i, c);
#pragma unroll
      for (int j = 0; j < rows_b / side; ++j) s[i][j] += dot(of_a, of_b[j]);
    }
  }
}

/// sum[i][c] += sum over n of weight(y + 16 i, n) * row n of `from`, columns 4 x + 64 c and the three after it.
template <int rows, int terms, int columns, class Weight>
__device__ void add_weighted_rows(const ThreadPlace& thread, Weight weight,
                                  const SharedTile<terms, columns>& from,
                                  float4 (&sum)[rows / side][columns / 64]) {
#pragma unroll 4
  for (int n = 0; n < terms; ++n) {
    float4 row[columns / 64];
#pragma unroll
    for (int c = 0; c < columns / 64; ++c) row[c] = from.four(n, 4 * thread.x + 64 * c);
#pragma unroll
    for (int i = 0; i < rows / side; ++i) {
      const float w = weight(thread.y + side * i, n);
#pragma unroll
      for (int c = 0; c < columns / 64; ++c) add_scaled(sum[i][c], w, row[c]);
    }
  }
}

/// Calls visit(column, number) for the four floats, from `column` on, that are inside a row of `dim`.
template <class Four, class Visit>
__device__ void for_columns(Four& four, int column, int dim, Visit visit) {
  if (column < dim) visit(column, four.x);
  if (column + 1 < dim) visit(column + 1, four.y);
  if (column + 2 < dim) visit(column + 2, four.z);
  if (column + 3 < dim) visit(column + 3, four.w);
}

/// The union of the keys that `rows` queries see. `of_query` is in shared memory.
template <int rows>
__device__ KeyInterval union_of(const KeyInterval* of_query) {
  KeyInterval all{0x7fffffff, 0};
  for (int i = 0; i < rows; ++i) {
    if (of_query[i].begin >= of_query[i].end) continue;
    all.begin = min(all.begin, of_query[i].begin);
    all.end = max(all.end, of_query[i].end);
  }
  return all;  // begin > end if no query sees a key
}

}  // namespace ring_attention::cuda
