// CUDA C++ for g++: the keywords, and the functions that a kernel may call without a header.
// NOLINTBEGIN(bugprone-reserved-identifier): the language has these names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <source_location>

#include "emulator/machine.hpp"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#ifdef __APPLE__
#define EMULATED_SHARED "__DATA,emulated_shared"
#else
#define EMULATED_SHARED "emulated_shared"
#endif
#define __shared__                                 \
  ::ring_attention::emulator::use_static_shared(); \
  static __attribute__((section(EMULATED_SHARED)))
#define __constant__ static
#define __launch_bounds__(...)
#define __grid_constant__

namespace ring_attention::emulator {

// The sizes of the kernel that runs.
inline dim3 blocks_of_grid, threads_of_block;

inline uint3 place_in(const dim3& sizes, unsigned i) {
  return {i % sizes.x, i / sizes.x % sizes.y, i / sizes.x / sizes.y};
}

template <class T>
T shuffled(T value, unsigned from, unsigned width) {
  struct Arguments {
    T value;
    unsigned from;
    T result;
  } arguments{value, from, {}};
  if (width != 32) fail("shuffles of part of a warp are not emulated");
  together(32, arguments, [](Arguments* const* each) {
    for (int lane = 0; lane < 32; ++lane) each[lane]->result = each[each[lane]->from & 31U]->value;
  });
  return arguments.result;
}

inline unsigned ballot(bool value) {
  struct Arguments {
    bool value;
    unsigned result;
  } arguments{value, 0};
  together(32, arguments, [](Arguments* const* each) {
    unsigned all = 0;
    for (unsigned lane = 0; lane < 32; ++lane) all |= (each[lane]->value ? 1U : 0U) << lane;
    for (unsigned lane = 0; lane < 32; ++lane) each[lane]->result = all;
  });
  return arguments.result;
}

inline void require_whole_warp(unsigned mask) {
  if (mask != 0xffffffffU) fail("only whole warps are emulated");
}

}  // namespace ring_attention::emulator

#define gridDim (::ring_attention::emulator::blocks_of_grid)
#define blockDim (::ring_attention::emulator::threads_of_block)
#define blockIdx (::ring_attention::emulator::place_in(gridDim, ::ring_attention::emulator::block()))
#define threadIdx (::ring_attention::emulator::place_in(blockDim, ::ring_attention::emulator::thread()))

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  const dim3& threads = blockDim;
  if (!::ring_attention::emulator::ignored(where))
    ::ring_attention::emulator::barrier_sync(0, threads.x * threads.y * threads.z, where);
}
inline void __syncwarp(unsigned mask = 0xffffffffU,
                       const std::source_location& where = std::source_location::current()) {
  ::ring_attention::emulator::require_whole_warp(mask);
  if (!::ring_attention::emulator::ignored(where)) (void)::ring_attention::emulator::ballot(true);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  ::ring_attention::emulator::require_whole_warp(mask);
  return ::ring_attention::emulator::shuffled(value, static_cast<unsigned>(from),
                                              static_cast<unsigned>(width));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
  const unsigned lane = ::ring_attention::emulator::thread() % 32;
  return __shfl_sync(mask, value, static_cast<int>(lane ^ static_cast<unsigned>(other)), width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const unsigned lane = ::ring_attention::emulator::thread() % 32;
  return __shfl_sync(mask, value, static_cast<int>(lane + by < 32 ? lane + by : lane), width);
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  ::ring_attention::emulator::require_whole_warp(mask);
  return ::ring_attention::emulator::ballot(value != 0);
}
inline int __ffs(unsigned value) { return __builtin_ffs(static_cast<int>(value)); }
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
inline int __all_sync(unsigned mask, int value) { return __ballot_sync(mask, value) == 0xffffffffU; }
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = before + value;
  if (*to != before) ::ring_attention::emulator::progress();
  return before;
}
// A thread that waits for another block calls it in a loop.
inline void __nanosleep(unsigned, const std::source_location& where = std::source_location::current()) {
  ::ring_attention::emulator::poll(where);
}
inline void __threadfence() {}
template <class T>
T min(T a, T b) {
  return std::min(a, b);
}
template <class T>
T max(T a, T b) {
  return std::max(a, b);
}
// NOLINTEND(bugprone-reserved-identifier)
