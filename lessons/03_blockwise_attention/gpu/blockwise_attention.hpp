// Lesson 03 on a GPU: what its kernel is given. Plain C++, so that Eigen and the kernel never meet in one file.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::lesson_03 {

constexpr int dim = 64;           // D: a row of q and of o fits into a thread's registers
constexpr int tile_queries = 64;  // the threads of a block, one a query
constexpr int tile_keys = 32;     // of K and of V in shared memory: 16 KiB

// What a mutant replaces.
struct Choices {
  bool barrier = true;  // all threads wait until the tile is there
  bool move_o = true;   // o follows the maximum, as l does
};

// Causal attention, enqueued. q, k, v, out: [heads][seq][dim], lse: [heads][seq], all in device memory.
struct DeviceArrays {
  const float *q, *k, *v;
  float *out, *lse;
  int heads, seq;
  float scale;
};
void blockwise_attention(const DeviceArrays& problem, const Choices& choices, cuda::StreamHandle stream);

}  // namespace ring_attention::lesson_03
