// Lesson 07 on a GPU: what its kernels are given. Plain C++, so that Eigen and the kernels never meet in one file.
#pragma once

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::lesson_07 {

constexpr int dim = 32;   // D: rows of k, v, dk and dv fit into a thread's registers
constexpr int tile = 64;  // keys of a block and queries of a tile; the threads of a block, one a key

// What a mutant replaces.
struct Mistakes {
  bool missing_scale = false;  // dK without the scale
  bool no_delta = false;       // dS = P * dP
  bool no_barrier = false;     // dS is read before all of it is there
};

// Causal. q, k, v, out, grad_out and the gradients: [heads][seq][dim]; lse, delta: [heads][seq]; in device memory.
struct DeviceArrays {
  const float *q, *k, *v, *out, *grad_out, *lse;
  float* delta;                     // left here
  float *grad_q, *grad_k, *grad_v;  // added to
  int heads, seq;
  float scale;
};
void backward(const DeviceArrays& problem, const Mistakes& mistakes, cuda::StreamHandle stream);

}  // namespace ring_attention::lesson_07
