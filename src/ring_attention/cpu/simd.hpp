/// \file
/// Vectors of floats or doubles as wide as the instruction set this file is compiled for: the vector types of GCC and
/// Clang, and one intrinsic, the fused multiply-add. Everything has internal linkage, so that each instruction set keeps its own copy.
#pragma once

#include "ring_attention/cpu/kernels.hpp"

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define RING_ATTENTION_UNROLL _Pragma("unroll")
#else
#define RING_ATTENTION_UNROLL _Pragma("GCC unroll 32")
#endif

namespace ring_attention::cpu {
namespace {

#ifndef RING_ATTENTION_REAL
#define RING_ATTENTION_REAL float  // for tools that read one file: the build says float or double
#define RING_ATTENTION_REAL_BYTES 4
#endif
using Real = RING_ATTENTION_REAL;

/// Kernels for few queries have tiles of one or two vectors, and more rows of sums instead: a tile takes as long for one
/// query as for all its lanes.
#if defined(RING_ATTENTION_VECTORS)
constexpr bool few_queries = true;
#else
constexpr bool few_queries = false;
#define RING_ATTENTION_VECTORS 0
#endif

// The registers hold a tile_vectors x tile_rows block of sums where queries are in lanes, and a key_vectors x key_rows
// block where the dimensions of dK and dV are: there key_vectors is a power of two, so that D = 64 and 128 leave no vector
// over, whose few sums could not hide the latency of a multiply-add.
#if defined(__AVX512F__)
#define RING_ATTENTION_VECTOR_BYTES 64
constexpr int tile_vectors = few_queries ? RING_ATTENTION_VECTORS : 4;  // of queries in a panel: 64 floats
constexpr int tile_rows = 16 / tile_vectors;  // 16 sums, 4 vectors and the broadcasts, in 32 registers
constexpr int key_vectors = 4, key_rows = 4;
constexpr int queries_of_many = 128;
#elif defined(__AVX__)
#define RING_ATTENTION_VECTOR_BYTES 32
constexpr int tile_vectors = few_queries ? RING_ATTENTION_VECTORS : 3;  // 24 floats
constexpr int tile_rows =
    few_queries ? 8 / tile_vectors : 4;       // 12 sums, 3 vectors and a broadcast, in 16 registers
constexpr int key_vectors = 2, key_rows = 6;  // 12 sums, 2 vectors and a broadcast
constexpr int queries_of_many = 96;
#elif defined(__aarch64__)
#define RING_ATTENTION_VECTOR_BYTES 16
constexpr int tile_vectors = few_queries ? RING_ATTENTION_VECTORS : 4;  // 16 floats
constexpr int tile_rows = 16 / tile_vectors;  // 16 sums, 4 vectors and the broadcasts, in 32 registers
constexpr int key_vectors = 4, key_rows = 4;
constexpr int queries_of_many = 96;
#else
#define RING_ATTENTION_VECTOR_BYTES 16
constexpr int tile_vectors = few_queries ? RING_ATTENTION_VECTORS : 2;  // 8 floats
constexpr int tile_rows =
    8 / tile_vectors;  // 8 sums, 2 vectors, a broadcast and the products, in 16 registers
constexpr int key_vectors = 2, key_rows = 4;
constexpr int queries_of_many = 96;
#endif

constexpr int width = RING_ATTENTION_VECTOR_BYTES / RING_ATTENTION_REAL_BYTES;  // elements in a vector

// The lanes of two vectors in turn: a0 b0 a1 b1 ..., up to the middle, and from there on.
#if RING_ATTENTION_VECTOR_BYTES / RING_ATTENTION_REAL_BYTES == 16
#define RING_ATTENTION_FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define RING_ATTENTION_SECOND_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif RING_ATTENTION_VECTOR_BYTES / RING_ATTENTION_REAL_BYTES == 8
#define RING_ATTENTION_FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define RING_ATTENTION_SECOND_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#elif RING_ATTENTION_VECTOR_BYTES / RING_ATTENTION_REAL_BYTES == 4
#define RING_ATTENTION_FIRST_HALVES 0, 4, 1, 5
#define RING_ATTENTION_SECOND_HALVES 2, 6, 3, 7
#else
#define RING_ATTENTION_FIRST_HALVES 0, 2
#define RING_ATTENTION_SECOND_HALVES 1, 3
#endif

constexpr int lanes = tile_vectors * width;

/// A tile of queries is several panels of so many lanes, each with its own part of the workspace. A block of keys, and of
/// dK and dV, comes from the third-level cache or from memory once for a tile: with 24 queries that takes longer than to
/// compute with it.
constexpr int panels = few_queries ? 1 : queries_of_many / lanes;
/// Bytes that servers with this instruction set have; a Rocket Lake has half of them with AVX-512. Not the bytes of the
/// machine that runs: the sums of dK and dV have one order for each tile, and the bits are to be the same on all of them.
constexpr Size second_level_cache = RING_ATTENTION_VECTOR_BYTES == 64 ? 1 << 20 : 1 << 19;

#if RING_ATTENTION_REAL_BYTES == 4
using Integer = int;
#else
using Integer = long long;
#endif

typedef Real Vector __attribute__((vector_size(sizeof(Real) * width)));
typedef Integer Integers __attribute__((vector_size(sizeof(Real) * width)));  // as many, as wide
typedef Real UnalignedVector
    __attribute__((vector_size(sizeof(Real) * width), aligned(sizeof(Real)), may_alias));
typedef int Ints __attribute__((vector_size(sizeof(int) * width)));             // as many
typedef unsigned Words __attribute__((vector_size(sizeof(unsigned) * width)));  // as many
typedef unsigned UnalignedWords
    __attribute__((vector_size(sizeof(unsigned) * width), aligned(sizeof(unsigned)), may_alias));
typedef int UnalignedInts __attribute__((vector_size(sizeof(int) * width), aligned(sizeof(int)), may_alias));

inline Vector load(const Real* p) { return *reinterpret_cast<const UnalignedVector*>(p); }
inline Integers load(const int* p) {
  return __builtin_convertvector(*reinterpret_cast<const UnalignedInts*>(p), Integers);
}
inline Words load(const unsigned* p) { return *reinterpret_cast<const UnalignedWords*>(p); }
inline void store(Real* p, Vector x) { *reinterpret_cast<UnalignedVector*>(p) = x; }
inline Vector broadcast(Real x) { return x - Vector{}; }  // x - 0 is x, -0 and NaN included

/// a b + c for every lane, rounded once where the instruction set has a fused multiply-add; elsewhere the product is rounded,
/// too. The only place that fuses: the compiler must not (-ffp-contract=off), for it would decide anew for each kernel and
/// version, and one query would get other bits in a tile of few queries than among many.
inline Vector fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__) && RING_ATTENTION_REAL_BYTES == 4
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX512F__)
  return (Vector)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__) && RING_ATTENTION_REAL_BYTES == 4
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__FMA__)
  return (Vector)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__) && RING_ATTENTION_REAL_BYTES == 4
  return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(__aarch64__)
  return (Vector)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
  return a * b + c;
#endif
}

/// Prefetches a row of n floats. For rows that are soon read by columns: the processor predicts sequential reads
/// only.
inline void prefetch(const Real* row, Offset n) {
  for (Offset i = 0; i < n; i += static_cast<Offset>(64 / sizeof(Real))) __builtin_prefetch(row + i, 0, 2);
}

/// The larger one; b where they do not compare (a NaN in b stays).
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

/// Returns x and hides its value from the optimiser, which would turn `larger` with a constant into two instructions.
inline Vector opaque(Vector x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}
inline Vector absolute(Vector x) { return (Vector)((Integers)x & ~(Integer{1} << (8 * sizeof(Real) - 1))); }

/// How a Real is made of bits, and 2^f for |f| <= 1/2 as a polynomial without its last term, which is 1.
#if RING_ATTENTION_REAL_BYTES == 4
constexpr int mantissa_bits = 23;
constexpr Real exponent_bias = 127;
constexpr Real exp2_terms[] = {1.326472670e-3F, 9.671512677e-3F, 5.550733745e-2F, 2.402224208e-1F,
                               6.931469776e-1F};
#else
constexpr int mantissa_bits = 52;
constexpr Real exponent_bias = 1023;
constexpr Real exp2_terms[] = {4.078071929588337e-10,  7.072570412814423e-09,  1.0180647659234139e-07,
                               1.3215442675329823e-06, 1.5252727385193868e-05, 0.0001540353044157213,
                               0.0013333558153439966,  0.009618129107607003,   0.05550410866479039,
                               0.24022650695910097,    0.6931471805599457};
#endif

/// 2^x for x < 127 (in double 1023): relative error below 2e-7 (in double 3e-16); exactly 0 below -127.5 (-1023.5) and
/// for -inf; NaN stays NaN.
///
/// x = n + f with an integer n and |f| <= 1/2. Adding 1.5 * 2^23 (in double 2^52) leaves n, plus the exponent's bias,
/// in the low bits of the sum; shifted into the exponent they are 2^n. A polynomial gives 2^f.
inline Vector exp2(Vector x) {
  constexpr Real magic = Real{1.5} * (Integer{1} << mantissa_bits) + exponent_bias;
  x = larger(opaque(broadcast(-exponent_bias)), x);
  const Vector shifted = x + magic;
  const Vector power = (Vector)((Integers)shifted << mantissa_bits);
  const Vector f = x - (shifted - magic);
  Vector p = broadcast(exp2_terms[0]);
  RING_ATTENTION_UNROLL
  for (Size i = 1; i < sizeof exp2_terms / sizeof(Real); ++i) p = fma(p, f, broadcast(exp2_terms[i]));
  p = fma(p, f, broadcast(1));
  return p * power;
}

/// tanh x, with a relative error of a few roundings. Near 0, where 1 - 2 / (e^2|x| + 1) cancels, Lambert's continued fraction
/// x / (1 + x^2 / (3 + x^2 / (5 + ...))), as one quotient. NaN stays NaN.
inline Vector tanh(Vector x) {
  constexpr int last = RING_ATTENTION_REAL_BYTES == 4 ? 9 : 17;  // the odd number at which the fraction ends
  const Vector size = absolute(x), square = x * x;
  Vector below = broadcast(1), fraction = broadcast(last);
  RING_ATTENTION_UNROLL
  for (int odd = last - 2; odd >= 1; odd -= 2) {
    const Vector next = fma(square, below, fraction * static_cast<Real>(odd));
    below = fraction;
    fraction = next;
  }
  constexpr Real one = 20;  // from here on tanh rounds to 1
  const Vector e =
      exp2((size > one ? broadcast(one) : size) * (2 * static_cast<Real>(1.44269504088896340736)));
  const Vector far = 1 - 2 / fma(e, broadcast(1), broadcast(1));
  const Integers sign = (Integers)x & (Integer{1} << (8 * sizeof(Real) - 1));
  return size < Real{0.5} ? x * below / fraction : (Vector)((Integers)far | sign);
}

/// Returns `at`, and lets clang read from it only after x is computed. Clang 19 else begins the broadcast of a row before
/// the last row is done, lacks one of AVX2's 16 registers, and keeps a sum of the product on the stack: half the speed.
/// Clang 16 has the sums in registers without it, and with it not all.
inline const Real* after([[maybe_unused]] Vector x, const Real* at) {
#if defined(__clang_major__) && __clang_major__ > 16 && defined(__x86_64__)
  asm("" : "+r"(at) : "v"(x));
#endif
  return at;
}

/// c[i][v] += sum_r A(i, r) * b[r][v]: the one product of all kernels. A(i, r) = a[i * row + r * column] is
/// broadcast to all lanes; b has rows of `stride` floats; the sums stay in registers.
template <int rows, int vectors>
inline void multiply_add(Vector (&c)[rows][vectors], const Real* a, Offset row, Offset column, const Real* b,
                         Offset stride, Offset n) {
  for (Offset r = 0; r < n; ++r) {
    Vector line[vectors];
    RING_ATTENTION_UNROLL
    for (int v = 0; v < vectors; ++v) line[v] = load(b + r * stride + v * width);
    const Real* at = a;
    RING_ATTENTION_UNROLL
    for (int i = 0; i < rows; ++i) {
      const Vector factor = broadcast(at[i * row + r * column]);
      RING_ATTENTION_UNROLL
      for (int v = 0; v < vectors; ++v) {
        c[i][v] = fma(factor, line[v], c[i][v]);
        at = after(c[i][v], at);
      }
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

/// row[0 .. columns-1] += x.
inline void add_to(Real* row, Vector x, Offset columns) {
  if (columns >= width)
    store(row, load(row) + x);
  else
    for (Offset c = 0; c < columns; ++c) row[c] += x[c];
}

/// A square block: to[c * to_stride + r] = from[r * from_stride + c], by shuffles in registers. Each round
/// interleaves the first half of the rows with the second; after log2(width) rounds rows are columns.
inline void transpose_block(const Real* from, Offset from_stride, Real* to, Offset to_stride) {
  Vector a[width], b[width];
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
inline void transpose(const Real* from, Offset from_stride, Offset rows, Offset columns, Real* to,
                      Offset to_stride) {
  const Offset whole_rows = rows - rows % width, whole_columns = columns - columns % width;
  for (Offset r = 0; r < whole_rows; r += width)
    for (Offset c = 0; c < whole_columns; c += width)
      transpose_block(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
  for (Offset r = 0; r < rows; ++r)
    for (Offset c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[c * to_stride + r] = from[r * from_stride + c];
}

}  // namespace
}  // namespace ring_attention::cpu
