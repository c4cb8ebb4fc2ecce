/// \file
/// The interface between the portable engines and the kernels, which are compiled once for every instruction set.
///
/// Only plain structs and function pointers pass through it. A kernel file includes this header and `simd.hpp` and
/// nothing else: an inline function of the standard library or of Eigen, compiled there with wide
/// instructions, could be the copy that the linker keeps for the whole program.
#pragma once

namespace ring_attention::cpu {

using Size = decltype(sizeof(0));
using Offset = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));

constexpr int max_lanes = 64;  ///< no kernel has more queries in a tile

/// The keys of one range, as a tile of queries sees them. An array of lanes has `max_lanes` entries, of which the
/// kernel reads as many as it has lanes; lanes without a query repeat a lane with one.
struct KeySpan {
  const float* k;    ///< [keys][dim]
  const float* v;    ///< [keys][dim]
  const int* begin;  ///< of each lane: its query sees the keys begin <= j < end of this range
  const int* end;    ///< of each lane
  float slope = 0;   ///< ALiBi: the score of key j falls by slope * |distance + j * stride|, ...
  float stride = 1;  ///< ... in tokens ...
  const float* distance = nullptr;  ///< ... where this is the distance of key 0, of each lane
};

/// A tile of queries in memory, row by row, with the state of its online softmax.
struct QueryRows {
  int queries;  ///< at most the lanes of the kernel
  int dim;
  float scale;     ///< of the scores
  const float* q;  ///< [queries][dim]
  float* o;        ///< [queries][dim]: sum 2^(s - m) v
  float* m;        ///< [queries]: the largest score so far, in units of log 2
  float* l;        ///< [queries]: sum 2^(s - m)
};

/// The same for the backward. A row that sees no key has lse = -inf.
struct GradientRows {
  int queries;
  int dim;
  float scale;
  const float* q;         ///< [queries][dim]
  const float* grad_out;  ///< [queries][dim]: dO
  const float* lse;       ///< [queries], natural logarithm, over all keys
  const float* delta;     ///< [queries]: rowsum(dO * O)
  float* grad_q;          ///< [queries][dim]: dQ, added to
};

/// One kernel for the forward: load a tile, attend to any number of spans of keys, store it.
struct ForwardKernel {
  int lanes;                   ///< queries in a tile
  Size (*workspace)(int dim);  ///< floats that a thread needs, at an address that is a multiple of 64
  void (*load)(const QueryRows&, float* workspace);
  void (*attend)(const KeySpan&, int dim, float* workspace);
  void (*store)(const QueryRows&, const float* workspace);
};

/// The backward in the same manner; `attend` adds to dK and dV, [keys][dim], of the span.
struct BackwardKernel {
  int lanes;
  Size (*workspace)(int dim);
  void (*load)(const GradientRows&, float* workspace);
  void (*attend)(const KeySpan&, const GradientRows&, float* grad_k, float* grad_v, float* workspace);
  void (*store)(const GradientRows&, const float* workspace);
};

struct Kernels {
  ForwardKernel forward;
  BackwardKernel backward;
};

}  // namespace ring_attention::cpu
