/// \file
/// Vectors of floats as wide as the instruction set this file is compiled for, without intrinsics: the vector
/// types of GCC and Clang. Everything has internal linkage, so that each instruction set keeps its own copy.
#pragma once

#include "ring_attention/cpu/kernels.hpp"

#if defined(__clang__)
#define RING_ATTENTION_UNROLL _Pragma("unroll")
#else
#define RING_ATTENTION_UNROLL _Pragma("GCC unroll 32")
#endif

namespace ring_attention::cpu {
namespace {

// The lanes of two vectors in turn: a0 b0 a1 b1 ..., up to the middle, and from there on.
#if defined(__AVX512F__)
#define RING_ATTENTION_FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define RING_ATTENTION_SECOND_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(__AVX__)
#define RING_ATTENTION_FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define RING_ATTENTION_SECOND_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define RING_ATTENTION_FIRST_HALVES 0, 4, 1, 5
#define RING_ATTENTION_SECOND_HALVES 2, 6, 3, 7
#endif

#if defined(__AVX512F__)
constexpr int width = 16;        // floats in a vector
constexpr int tile_vectors = 4;  // of queries in a tile: 64
constexpr int tile_rows = 4;     // 16 sums, 4 vectors and the broadcasts, in 32 registers
#elif defined(__AVX__)
constexpr int width = 8;
constexpr int tile_vectors = 3;  // 24 queries
constexpr int tile_rows = 4;     // 12 sums, 3 vectors and a broadcast, in 16 registers
#elif defined(__aarch64__)
constexpr int width = 4;
constexpr int tile_vectors = 4;  // 16 queries
constexpr int tile_rows = 4;     // 16 sums, 4 vectors and the broadcasts, in 32 registers
#else
constexpr int width = 4;
constexpr int tile_vectors = 2;  // 8 queries
constexpr int tile_rows = 4;     // 8 sums, 2 vectors, a broadcast and the products, in 16 registers
#endif

constexpr int lanes = tile_vectors * width;

typedef float Floats __attribute__((vector_size(4 * width)));
typedef int Ints __attribute__((vector_size(4 * width)));
typedef float UnalignedFloats __attribute__((vector_size(4 * width), aligned(4), may_alias));
typedef int UnalignedInts __attribute__((vector_size(4 * width), aligned(4), may_alias));

inline Floats load(const float* p) { return *reinterpret_cast<const UnalignedFloats*>(p); }
inline Ints load(const int* p) { return *reinterpret_cast<const UnalignedInts*>(p); }
inline void store(float* p, Floats x) { *reinterpret_cast<UnalignedFloats*>(p) = x; }
inline Floats broadcast(float x) { return x - Floats{}; }  // x - 0 is x, -0 and NaN included

/// Prefetches a row of n floats. For rows that are soon read by columns: the processor predicts sequential reads
/// only.
inline void prefetch(const float* row, Offset n) {
  for (Offset i = 0; i < n; i += 16) __builtin_prefetch(row + i, 0, 2);
}

/// The larger one; b where they do not compare (a NaN in b stays).
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

/// Returns x and hides its value from the optimiser, which would turn `larger` with a constant into two instructions.
inline Floats opaque(Floats x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}
inline Floats absolute(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }

/// 2^x for x < 127: relative error below 2e-7; exactly 0 below -127.5 and for -inf; NaN stays NaN.
///
/// x = n + f with an integer n and |f| <= 1/2. Adding 1.5 * 2^23 leaves n, plus 127, in the low bits of the sum;
/// shifted into the exponent they are 2^n. A polynomial gives 2^f.
inline Floats exp2(Floats x) {
  constexpr float magic = 12582912.0F + 127.0F;
  x = larger(opaque(broadcast(-127.0F)), x);
  const Floats shifted = x + magic;
  const Floats power = (Floats)((Ints)shifted << 23);
  const Floats f = x - (shifted - magic);
  Floats p = f * 1.326472670e-3F + 9.671512677e-3F;
  p = p * f + 5.550733745e-2F;
  p = p * f + 2.402224208e-1F;
  p = p * f + 6.931469776e-1F;
  p = p * f + 1.0F;
  return p * power;
}

/// c[i][v] += sum_r A(i, r) * b[r][v]: the one product of all kernels. A(i, r) = a[i * row + r * column] is
/// broadcast to all lanes; b has rows of `stride` floats; the sums stay in registers.
template <int rows, int vectors>
inline void multiply_add(Floats (&c)[rows][vectors], const float* a, Offset row, Offset column,
                         const float* b, Offset stride, Offset n) {
  for (Offset r = 0; r < n; ++r) {
    Floats line[vectors];
    RING_ATTENTION_UNROLL
    for (int v = 0; v < vectors; ++v) line[v] = load(b + r * stride + v * width);
    RING_ATTENTION_UNROLL
    for (int i = 0; i < rows; ++i) {
      const Floats factor = broadcast(a[i * row + r * column]);
      RING_ATTENTION_UNROLL
      for (int v = 0; v < vectors; ++v) c[i][v] += factor * line[v];
    }
  }
}

template <int n>
struct Count {
  static constexpr int value = n;
};

/// Calls visit(Count<rows>, first) for groups that cover 0 .. n-1: full groups, then halves of them.
template <int rows, class Visit>
inline void for_groups(Offset n, Visit visit, Offset first = 0) {
  for (; first + rows <= n; first += rows) visit(Count<rows>{}, first);
  if constexpr (rows > 1) for_groups<rows / 2>(n, visit, first);
}

/// A square block: to[c * to_stride + r] = from[r * from_stride + c], by shuffles in registers. Each round
/// interleaves the first half of the rows with the second; after log2(width) rounds rows are columns.
inline void transpose_block(const float* from, Offset from_stride, float* to, Offset to_stride) {
  Floats a[width], b[width];
  RING_ATTENTION_UNROLL
  for (int i = 0; i < width; ++i) a[i] = load(from + i * from_stride);
  RING_ATTENTION_UNROLL
  for (int round = 1; round < width; round *= 2) {
    RING_ATTENTION_UNROLL
    for (int i = 0; i < width / 2; ++i) {
      b[2 * i] = __builtin_shufflevector(a[i], a[i + width / 2], RING_ATTENTION_FIRST_HALVES);
      b[2 * i + 1] = __builtin_shufflevector(a[i], a[i + width / 2], RING_ATTENTION_SECOND_HALVES);
    }
    RING_ATTENTION_UNROLL
    for (int i = 0; i < width; ++i) a[i] = b[i];
  }
  RING_ATTENTION_UNROLL
  for (int i = 0; i < width; ++i) store(to + i * to_stride, a[i]);
}

/// to[c][r] = scale * from[r][c], rows x columns, blocks first and then the rest.
inline void transpose(const float* from, Offset from_stride, Offset rows, Offset columns, float* to,
                      Offset to_stride) {
  const Offset whole_rows = rows - rows % width, whole_columns = columns - columns % width;
  for (Offset r = 0; r < whole_rows; r += width)
    for (Offset c = 0; c < whole_columns; c += width)
      transpose_block(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
  for (Offset r = 0; r < rows; ++r)
    for (Offset c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[c * to_stride + r] = from[r * from_stride + c];
}

constexpr float log2_e = 1.44269504088896341F;
constexpr float infinity = __builtin_inff();

/// Bias and mask of the scores of key j with the queries of vector v.
inline Floats adjusted(Floats s, const KeySpan& span, Offset j, int v, bool masked) {
  if (span.slope != 0)
    s -= span.slope * absolute(load(span.distance + v * width) + static_cast<float>(j) * span.stride);
  if (!masked) return s;
  const Ints key = Ints{} + static_cast<int>(j);
  const auto seen = (load(span.begin + v * width) <= key) & (key < load(span.end + v * width));
  return seen ? s : broadcast(-infinity);
}

/// Which keys of a span some query of the tile sees, and which all of them.
struct SeenKeys {
  explicit SeenKeys(const KeySpan& span) {
    for (int i = 0; i < lanes; ++i) {
      begin = span.begin[i] < begin ? span.begin[i] : begin;
      end = span.end[i] > end ? span.end[i] : end;
      all_begin = span.begin[i] > all_begin ? span.begin[i] : all_begin;
      all_end = span.end[i] < all_end ? span.end[i] : all_end;
    }
  }
  [[nodiscard]] bool by_all(Offset from, Offset to) const { return all_begin <= from && to <= all_end; }

  static constexpr Offset huge = 0x7fffffff;
  Offset begin = huge, end = 0;
  Offset all_begin = 0, all_end = huge;
};

}  // namespace
}  // namespace ring_attention::cpu
