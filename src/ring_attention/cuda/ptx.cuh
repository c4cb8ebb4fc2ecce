/// \file
/// Inline-PTX wrappers for sm_80 and later: cp.async, ldmatrix, mma.sync. Source: the PTX ISA, version 9.0; each
/// comment names its instruction.
///
/// The emulator replaces this header (lessons/emulator). Only this file and ptx_hopper.cuh contain inline assembly.
/// Addresses of shared memory are 32 bits wide, as the instructions require.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace ring_attention::cuda {

/// The block's dynamic shared memory, aligned to 1024 bytes. The launch sets its size.
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

/// Returns x, and hides from the compiler that it is x. So the compiler computes what depends on it where it is needed,
/// instead of keeping it in registers across a loop.
__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// Copies 16 bytes from global to shared memory asynchronously, without registers. Writes zeros and reads nothing
/// unless `valid`. Both addresses are multiples of 16. (cp.async)
__device__ inline void cp_async_16(unsigned to, const void* from, bool valid) {
  const unsigned bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/// Ends a group of this thread's copies. (cp.async.commit_group)
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all of this thread's groups except the newest `newest` are complete. Other threads see the data after a
/// barrier. (cp.async.wait_group)
template <int newest>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

/// Stores four bytes to shared memory. (st.shared)
__device__ inline void store_shared(unsigned to, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

/// Stores two neighbouring numbers to shared memory. (st.shared.v2)
__device__ inline void store_shared_v2(unsigned to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

/// Waits until another block has stored `value` by store_release(). What it had written before is then visible.
/// (ld.acquire.gpu)
__device__ inline void wait_for_value(const int* at, int value) {
  int found;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(found)
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
  } while (found != value);
}
/// Stores after all that this thread has written, or has seen written. (st.release.gpu)
__device__ inline void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(value)
               : "memory");
}

/// Loads four 8x8 matrices of 16-bit numbers. Lane i passes the address of row i % 8 of matrix i / 8, 16 bytes. Of each
/// matrix it receives the two numbers in row lane / 4, columns 2 (lane % 4) and 2 (lane % 4) + 1. (ldmatrix)
__device__ inline void ldmatrix_x4(unsigned (&r)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

/// Loads and transposes each matrix: a lane receives rows 2 (lane % 4) and 2 (lane % 4) + 1 of column lane / 4.
/// (ldmatrix.trans)
__device__ inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

/// d += a b by one warp: a is 16x16, b 16x8, d 16x8 in fp32. With g = lane / 4 and t = lane % 4, a lane holds
///
///     a[0] = A(g, 2t..2t+1)   a[1] = A(g+8, 2t..)   a[2] = A(g, 2t+8..)   a[3] = A(g+8, 2t+8..)
///     b0   = B(2t..2t+1, g)   b1   = B(2t+8.., g)
///     d[0], d[1] = D(g, 2t..2t+1)   d[2], d[3] = D(g+8, 2t..2t+1)
///
/// So two neighbouring d, rounded to 16 bits, are the a of the next product. (mma.m16n8k16)
template <class T>
__device__ inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Rounds two numbers to nearest even and packs them into one register: `low` is the lower half. (cvt.rn.x2)
template <class T>
__device__ inline unsigned packed(float low, float high) {
  unsigned both;
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// 2^x with a relative error of at most 2^-22; 0 for -inf and where the result would be subnormal. (ex2.approx)
__device__ inline float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace ring_attention::cuda
