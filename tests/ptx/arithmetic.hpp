// Arithmetic: instructions that neither touch memory nor wait. One template for each shape of operands.
#pragma once

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "ptx/machine.hpp"

namespace ptx {

/// Calls f(lane) for the lanes of a mask.
template <class F>
inline __attribute__((always_inline)) void for_lanes(u32 mask, F f) {
  if (mask == 0xffffffffU) {
#pragma GCC ivdep
    for (int l = 0; l < 32; ++l) f(l);
    return;
  }
  for (; mask != 0; mask &= mask - 1) f(std::countr_zero(mask));
}

/// d = f(a), of the types D and A.
template <class D, class A, auto f>
void unary(Warp& w, const Instruction& i, u32 mask) {
  D* d = w.at<D>(i.d);
  A* a = w.at<A>(i.a);
  for_lanes(mask, [=](int l) { d[l] = f(a[l]); });
}
template <class T, auto f>
void binary(Warp& w, const Instruction& i, u32 mask) {
  T *d = w.at<T>(i.d), *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  for_lanes(mask, [=](int l) { d[l] = f(a[l], b[l]); });
}
template <class T, auto f>
void ternary(Warp& w, const Instruction& i, u32 mask) {
  T *d = w.at<T>(i.d), *a = w.at<T>(i.a), *b = w.at<T>(i.b), *c = w.at<T>(i.c);
  for_lanes(mask, [=](int l) { d[l] = f(a[l], b[l], c[l]); });
}
/// mul.wide: the product has twice the bits.
template <class Wide, class T>
void multiply_wide(Warp& w, const Instruction& i, u32 mask) {
  Wide* d = w.at<Wide>(i.d);
  T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  for_lanes(mask, [=](int l) { d[l] = static_cast<Wide>(a[l]) * static_cast<Wide>(b[l]); });
}

// ---- integers. Division by zero has an unspecified result.

template <class T>
T quotient(T a, T b) {
  return b == 0 ? static_cast<T>(-1) : static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b) {
  return b == 0 ? a : static_cast<T>(a % b);
}
/// shl and shr: counts above the width are the width. shr of a signed type copies the sign.
template <class T, bool left>
void shift(Warp& w, const Instruction& i, u32 mask) {
  T *d = w.at<T>(i.d), *a = w.at<T>(i.a);
  u32* b = w.at<u32>(i.b);
  constexpr u32 bits = sizeof(T) * 8;
  for_lanes(mask, [=](int l) {
    const u32 count = b[l];
    if constexpr (left)
      d[l] = count >= bits ? T{0} : static_cast<T>(a[l] << count);
    else
      d[l] = count >= bits ? static_cast<T>(a[l] < T{0} ? -1 : 0) : static_cast<T>(a[l] >> count);
  });
}
inline u32 reversed_bits(u32 x) {
  u32 r = 0;
  for (u32 i = 0; i < 32; ++i) r |= (x >> i & 1U) << (31U - i);
  return r;
}
inline u32 left_shift_to_highest_bit(u32 x) {  // bfind.shiftamt
  return x == 0 ? 0xffffffffU : static_cast<u32>(std::countl_zero(x));
}

// ---- float

/// min and max: a NaN gives the other operand, and -0 is less than +0.
inline float minimum(float a, float b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return std::min(a, b);
}
inline float maximum(float a, float b) { return -minimum(-a, -b); }
inline float saturated(float x) { return x > 0 ? std::min(x, 1.0F) : 0.0F; }  // a NaN becomes 0
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x; }

/// From -1 to 1, by the bits of a: the direction in which an approximate instruction is off.
inline double direction_of(float a) { return (std::bit_cast<u32>(a) * 2654435761U >> 16U) / 32767.5 - 1; }
/// ex2.approx: off by up to the error that the ISA allows, 2^-22.
inline float exp2_approximately(float a) {
  return static_cast<float>(std::exp2(static_cast<double>(a)) * (1 + 0x1p-22 * direction_of(a)));
}
/// rcp.approx: the ISA allows 2^-23.
inline float reciprocal_approximately(float a) {
  return static_cast<float>(1 / static_cast<double>(a) * (1 + 0x1p-23 * direction_of(a)));
}

/// f in another rounding mode.
template <int mode, auto f>
void rounded(Warp& w, const Instruction& i, u32 mask) {
  float *d = w.at<float>(i.d), *a = w.at<float>(i.a), *b = w.at<float>(i.b);
  const float* c = i.c < 0 ? a : w.at<float>(i.c);
  std::fesetround(mode);
  for (; mask != 0; mask &= mask - 1) {
    const int l = std::countr_zero(mask);
    const volatile float x = a[l], y = b[l], z = c[l];  // volatile: computed here
    const volatile float r = f(x, y, z);
    d[l] = r;
  }
  std::fesetround(FE_TONEAREST);
}

// ---- half precision

inline float from_bf16(u16 x) { return std::bit_cast<float>(u32{x} << 16U); }
inline float from_fp16(u16 x) { return static_cast<float>(std::bit_cast<_Float16>(x)); }
inline u16 to_bf16(float x) {
  const u32 bits = std::bit_cast<u32>(x);
  return std::isnan(x) ? u16{0x7fff} : static_cast<u16>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}
inline u16 to_fp16(float x) {
  return std::isnan(x) ? u16{0x7fff} : std::bit_cast<u16>(static_cast<_Float16>(x));
}
/// cvt.rn.bf16x2.f32 d, a, b: a is the upper half.
template <auto convert>
void pack_halves(Warp& w, const Instruction& i, u32 mask) {
  float *a = w.at<float>(i.a), *b = w.at<float>(i.b);
  u32* d = w.at<u32>(i.d);
  for_lanes(mask, [=](int l) { d[l] = u32{convert(a[l])} << 16U | convert(b[l]); });
}

// ---- predicates

inline void set_predicate(Warp& w, i32 at, u32 mask, u32 bits) {
  if (at < 0) return;
  u32& p = *w.at<u32>(at);
  p = (p & ~mask) | (bits & mask);
}
inline u32 predicate(Warp& w, i32 at, bool negated) { return negated ? ~*w.at<u32>(at) : *w.at<u32>(at); }

template <class T, auto compare>
void compare_lanes(Warp& w, const Instruction& i, u32 mask) {  // setp
  T *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  u32 r = 0;
  for (int l = 0; l < 32; ++l) r |= static_cast<u32>(compare(a[l], b[l])) << l;
  set_predicate(w, i.d, mask, r);
}
template <auto f>
void of_predicates(Warp& w, const Instruction& i, u32 mask) {
  set_predicate(w, i.d, mask, f(*w.at<u32>(i.a), i.b < 0 ? 0U : *w.at<u32>(i.b)));
}
template <class T>
void select(Warp& w, const Instruction& i, u32 mask) {  // selp
  T *d = w.at<T>(i.d), *a = w.at<T>(i.a), *b = w.at<T>(i.b);
  const u32 p = *w.at<u32>(i.c);
  for_lanes(mask, [=](int l) { d[l] = p >> l & 1U ? a[l] : b[l]; });
}

// ---- registers of any size

inline u64 get(Warp& w, i32 offset, int bytes, int lane) {
  u64 x = 0;
  std::memcpy(&x, w.at<u8>(offset) + std::ptrdiff_t{lane} * bytes, static_cast<std::size_t>(bytes));
  return x;
}
inline void put(Warp& w, i32 offset, int bytes, int lane, u64 x) {
  std::memcpy(w.at<u8>(offset) + std::ptrdiff_t{lane} * bytes, &x, static_cast<std::size_t>(bytes));
}
/// mov {v...} = a: v, the registers, and w, their sizes; size, that of a.
inline void unpack(Warp& w, const Instruction& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    u64 x = get(w, i.a, i.size, l);
    for (std::size_t k = 0; k < i.v.size(); ++k) {
      if (i.v[k] >= 0) put(w, i.v[k], i.w[k], l, x);
      x = i.w[k] == 8 ? 0 : x >> (8 * i.w[k]);
    }
  });
}
/// mov d = {v...}
inline void pack(Warp& w, const Instruction& i, u32 mask) {
  for_lanes(mask, [&](int l) {
    u64 x = 0;
    int bits = 0;
    for (std::size_t k = 0; k < i.v.size(); bits += 8 * i.w[k], ++k) x |= get(w, i.v[k], i.w[k], l) << bits;
    put(w, i.d, i.size, l, x);
  });
}

}  // namespace ptx
