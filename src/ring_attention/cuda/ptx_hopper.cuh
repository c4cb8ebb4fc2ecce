/// \file
/// Inline-PTX wrappers for Hopper (sm_90a): mbarrier, TMA (cp.async.bulk.tensor), setmaxnreg, wgmma. Source: the PTX
/// ISA, version 9.0; each comment names its instruction.
///
/// The emulator replaces this header (lessons/emulator). For other architectures the functions trap: kernels that use
/// them are never launched there.
#pragma once

#include "ring_attention/cuda/ptx.cuh"
#include "ring_attention/cuda/tensor_map.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define RING_ATTENTION_HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define RING_ATTENTION_HOPPER(...) __trap()
#endif

namespace ring_attention::cuda {

// mbarrier: a barrier in shared memory, 8 bytes. A phase ends when `count` threads have arrived and all expected bytes
// have arrived. Phases are distinguished by their parity; the first has parity 0.

__device__ inline void mbarrier_init(unsigned barrier, unsigned count) {
  RING_ATTENTION_HOPPER("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Makes initialised mbarriers visible to TMA. One thread calls it before a __syncthreads. (fence.mbarrier_init)
__device__ inline void mbarrier_init_fence() {
  RING_ATTENTION_HOPPER("fence.mbarrier_init.release.cluster;" :: : "memory");
  RING_ATTENTION_HOPPER("fence.proxy.async.shared::cta;" :: : "memory");
}
__device__ inline void mbarrier_arrive(unsigned barrier) {
  RING_ATTENTION_HOPPER("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// All lanes of a warp call it. Lane 0 arrives for them after what all of them have read and written: an arrival orders
/// the accesses of its own thread only. (bar.warp.sync, mbarrier.arrive)
__device__ inline void mbarrier_arrive_for_warp(unsigned barrier, int lane) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive(barrier);
}
/// Arrives, and adds the bytes of copies that the phase waits for.
__device__ inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  RING_ATTENTION_HOPPER("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                        "r"(bytes) : "memory");
}
/// Waits until the phase with this parity has ended. (mbarrier.try_wait.parity)
__device__ inline void mbarrier_wait(unsigned barrier, unsigned parity) {
  RING_ATTENTION_HOPPER(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity) : "memory");
}

/// Copies the box of a tensor at these coordinates to shared memory, as the map describes. Its bytes arrive at
/// `barrier`. Elements outside the tensor become zero. One thread calls it. (cp.async.bulk.tensor.3d)
__device__ inline void tma_load_3d(unsigned to, const TensorMap& map, int column, int row, int matrix,
                                   unsigned barrier) {
  RING_ATTENTION_HOPPER(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier) : "memory");
}

/// Copies contiguous bytes from global to shared memory; they arrive at `barrier`. Both addresses and `bytes` are
/// multiples of 16. One thread calls it. (cp.async.bulk)
__device__ inline void cp_async_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  RING_ATTENTION_HOPPER(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}

/// Adds contiguous floats in shared memory to floats in global memory, atomically each. Both addresses and `bytes` are
/// multiples of 16. (cp.reduce.async.bulk)
__device__ inline void bulk_add(float* to, unsigned from, int bytes) {
  RING_ATTENTION_HOPPER("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                            __cvta_generic_to_global(to)),
                        "r"(from), "r"(bytes) : "memory");
}
/// Waits until all of this thread's bulk_add have read shared memory. (cp.async.bulk.commit_group, wait_group.read)
__device__ inline void bulk_add_wait_read() {
  RING_ATTENTION_HOPPER("cp.async.bulk.commit_group;" :: : "memory");
  RING_ATTENTION_HOPPER("cp.async.bulk.wait_group.read 0;" :: : "memory");
}

/// Makes this thread's earlier stores to shared memory visible to the async proxy, through which TMA and wgmma access
/// it. It comes before the barrier after which another thread starts them. (fence.proxy.async)
__device__ inline void fence_proxy_async() {
  RING_ATTENTION_HOPPER("fence.proxy.async.shared::cta;" :: : "memory");
}

/// Adds to two neighbouring numbers in device memory, atomically each. `to` is aligned to 8 bytes. (red.add.v2.f32)
__device__ inline void red_add_v2(float* to, float first, float second) {
  RING_ATTENTION_HOPPER("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                        "f"(first), "f"(second) : "memory");
}

/// Synchronizes `threads` threads at barrier `number` (1 .. 15; __syncthreads uses 0). What they wrote before it is
/// visible to all of them after it. (bar.sync)
template <int threads>
__device__ inline void named_barrier(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

/// A named barrier that only orders the warpgroups in time: wait for the other threads (bar.sync), or arrive
/// without waiting (bar.arrive). The emulator does not test whether they are needed.
template <int threads>
__device__ inline void named_barrier_sync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}
template <int threads>
__device__ inline void named_barrier_arrive(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

/// Sets the registers per thread of the calling warpgroup. dec releases registers; inc waits until enough are free.
/// (setmaxnreg)
template <int registers>
__device__ inline void setmaxnreg_dec() {
  RING_ATTENTION_HOPPER("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void setmaxnreg_inc() {
  RING_ATTENTION_HOPPER("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// wgmma: four warps multiply together, asynchronously. The sums are in their registers. Each warp has 16 rows in the
// layout of mma_m16n8k16: a lane's d[4 j + i] is d[i] of the j-th group of eight columns.

/// The descriptor of a matrix in shared memory with rows of 128 bytes, swizzled as by TMA: piece c of row r is at c ^
/// (r % 8). Tiles start at multiples of 1024 bytes, which are eight rows. `columns_on` is the distance in bytes from 64
/// columns to the next 64. (matrix descriptor)
__device__ inline unsigned long long matrix_descriptor(unsigned address, unsigned columns_on) {
  return static_cast<unsigned long long>((address & 0x3ffffU) >> 4U) |
         static_cast<unsigned long long>(columns_on >> 4U) << 16U | 1024ULL >> 4U << 32U | 1ULL << 62U;
}

/// Orders earlier register writes before the following wgmma. (wgmma.fence)
__device__ inline void wgmma_fence() { RING_ATTENTION_HOPPER("wgmma.fence.sync.aligned;" :: : "memory"); }
__device__ inline void wgmma_commit() {
  RING_ATTENTION_HOPPER("wgmma.commit_group.sync.aligned;" :: : "memory");
}

/// Waits until all committed groups except the newest `newest` are complete. (wgmma.wait_group)
template <int newest>
__device__ inline void wgmma_wait() {
  RING_ATTENTION_HOPPER("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
}
/// Makes the compiler write the registers `a` before this line. Without it the compiler may move the writes behind
/// wgmma_fence and then serialise the wgmma (ptxas warning C7519).
template <int rows, int count>
__device__ inline void wgmma_fence_operand(unsigned (&a)[rows][count]) {
#pragma unroll
  for (int i = 0; i < rows; ++i)
#pragma unroll
    for (int j = 0; j < count; ++j) asm volatile("" : "+r"(a[i][j])::"memory");
}
/// Keeps the compiler from moving accesses of `d` across this line.
template <int count>
__device__ inline void wgmma_fence_result(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define RING_ATTENTION_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RING_ATTENTION_16(i) \
  RING_ATTENTION_4(i), RING_ATTENTION_4(i + 4), RING_ATTENTION_4(i + 8), RING_ATTENTION_4(i + 12)
#define RING_ATTENTION_32 RING_ATTENTION_16(0), RING_ATTENTION_16(16)
#define RING_ATTENTION_64 RING_ATTENTION_32, RING_ATTENTION_16(32), RING_ATTENTION_16(48)
#define RING_ATTENTION_88 RING_ATTENTION_64, RING_ATTENTION_16(64), RING_ATTENTION_4(80), RING_ATTENTION_4(84)
#define RING_ATTENTION_D32                                                         \
  "{"                                                                              \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "         \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
  "}"
#define RING_ATTENTION_D64                                                           \
  "{"                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"   \
  "}"
#define RING_ATTENTION_D88                                                           \
  "{"                                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87"                                           \
  "}"
#define RING_ATTENTION_SHARED_64(type)                                                                  \
  RING_ATTENTION_HOPPER(                                                                                \
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
      " " RING_ATTENTION_D32 ", %32, %33, p, 1, 1, %35, %36;}" : RING_ATTENTION_32 : "l"(a),            \
      "l"(b), "r"(static_cast<int>(accumulate)), "n"(a_by_columns), "n"(b_by_rows))
#define RING_ATTENTION_REGISTERS_64(type)                                                                   \
  RING_ATTENTION_HOPPER(                                                                                    \
      "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type     \
      " " RING_ATTENTION_D32 ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;}" : RING_ATTENTION_32 : "r"(a[0]), \
      "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(b_by_rows))
#define RING_ATTENTION_SHARED_128(type)                                                                  \
  RING_ATTENTION_HOPPER(                                                                                 \
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
      " " RING_ATTENTION_D64 ", %64, %65, p, 1, 1, %67, %68;}" : RING_ATTENTION_64 : "l"(a),             \
      "l"(b), "r"(static_cast<int>(accumulate)), "n"(a_by_columns), "n"(b_by_rows))
#define RING_ATTENTION_REGISTERS_128(type)                                                                  \
  RING_ATTENTION_HOPPER(                                                                                    \
      "{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type    \
      " " RING_ATTENTION_D64 ", {%64, %65, %66, %67}, %68, p, 1, 1, %70;}" : RING_ATTENTION_64 : "r"(a[0]), \
      "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(b_by_rows))
#define RING_ATTENTION_SHARED_176(type)                                                                  \
  RING_ATTENTION_HOPPER(                                                                                 \
      "{.reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32." type "." type \
      " " RING_ATTENTION_D88 ", %88, %89, p, 1, 1, %91, %92;}" : RING_ATTENTION_88 : "l"(a),             \
      "l"(b), "r"(static_cast<int>(accumulate)), "n"(a_by_columns), "n"(b_by_rows))

/// d (64 x N) = a (64 x 16) b (16 x N), or += if `accumulate`. N is 64, 128 or 176. a and b are in shared memory. A row of
/// memory is a row of a, or a column of a if a_by_columns. A row of memory is a column of b (so that the tile is b^T),
/// or a row of b if b_by_rows. (wgmma.mma_async)
template <class T, int a_by_columns, int b_by_rows, int count>
__device__ inline void wgmma_m64nNk16(float (&d)[count], unsigned long long a, unsigned long long b,
                                      bool accumulate) {
  static_assert(count == 32 || count == 64 || count == 88);
  constexpr bool is_bf16 = std::is_same_v<T, __nv_bfloat16>;
  if constexpr (count == 32 && is_bf16)
    RING_ATTENTION_SHARED_64("bf16");
  else if constexpr (count == 32)
    RING_ATTENTION_SHARED_64("f16");
  else if constexpr (count == 64 && is_bf16)
    RING_ATTENTION_SHARED_128("bf16");
  else if constexpr (count == 64)
    RING_ATTENTION_SHARED_128("f16");
  else if constexpr (is_bf16)
    RING_ATTENTION_SHARED_176("bf16");
  else
    RING_ATTENTION_SHARED_176("f16");
}

/// The product with a in registers, each warp's 16 rows in the layout of mma_m16n8k16, and N 64 or 128. Only after the
/// wait may the registers be overwritten.
template <class T, int b_by_rows, int count>
__device__ inline void wgmma_m64nNk16(float (&d)[count], const unsigned (&a)[4], unsigned long long b,
                                      bool accumulate) {
  static_assert(count == 32 || count == 64);
  if constexpr (count == 32 && std::is_same_v<T, __nv_bfloat16>)
    RING_ATTENTION_REGISTERS_64("bf16");
  else if constexpr (count == 32)
    RING_ATTENTION_REGISTERS_64("f16");
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    RING_ATTENTION_REGISTERS_128("bf16");
  else
    RING_ATTENTION_REGISTERS_128("f16");
}

#undef RING_ATTENTION_16
#undef RING_ATTENTION_32
#undef RING_ATTENTION_4
#undef RING_ATTENTION_64
#undef RING_ATTENTION_88
#undef RING_ATTENTION_D32
#undef RING_ATTENTION_D64
#undef RING_ATTENTION_D88
#undef RING_ATTENTION_HOPPER
#undef RING_ATTENTION_REGISTERS_128
#undef RING_ATTENTION_REGISTERS_64
#undef RING_ATTENTION_SHARED_128
#undef RING_ATTENTION_SHARED_176
#undef RING_ATTENTION_SHARED_64

}  // namespace ring_attention::cuda
