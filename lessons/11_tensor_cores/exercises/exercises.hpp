// The exercises of lesson 11: what each kernel is given. Plain C++, for the judge. All arrays are in device memory.
#pragma once

#include <cuda_bf16.h>

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::lesson_11 {

constexpr int dim = 64;   // D: a row of Q, K and V
constexpr int tile = 64;  // rows of K or V in shared memory, in c and d

// a: query i sees the keys from i - left to i, as many as there are.
struct Softmax {
  const float *q, *k, *v;  // [queries][dim], [keys][dim]
  float *out, *lse;        // [queries][dim], [queries]
  int queries, keys, left;
  float scale;
};
void running_softmax(const Softmax& problem, cuda::StreamHandle stream);

// b: s = q k^T by one warp.
struct Product {
  const __nv_bfloat16 *q, *k;  // [16][dim], [8][dim]
  float* s;                    // [16][8]
};
void mma_fragment(const Product& problem, cuda::StreamHandle stream);

// c: the scores of one query.
struct Scores {
  const __nv_bfloat16 *q, *k;  // [dim], [keys][dim]
  float* s;                    // [keys]
  int keys;
};
void tma_load(const Scores& problem, cuda::StreamHandle stream);

// d: the sum of the rows of each tile of V.
struct Sums {
  const __nv_bfloat16* v;  // [tiles * tile][dim]
  float* sums;             // [tiles][dim]
  int tiles;
};
void producer_and_consumer(const Sums& problem, cuda::StreamHandle stream);

// e: the order in which two warpgroups issue their products, each `turns` times.
struct Turns {
  int* issued;  // how many products have been issued; 0 at first
  int* order;   // [2 * turns] the warpgroup of each
  int turns;
};
void ping_pong(const Turns& problem, cuda::StreamHandle stream);

}  // namespace ring_attention::lesson_11
