/// \file
/// The border between the engines of the GPU, plain C++, and the kernels, each a `.cu` file of its own.
///
/// Plain structs and function pointers cross it, as in the room `cpu`. A kernel is given one shard of keys and all
/// queries of the rank; what it accumulates carries over to the next ring step.
#pragma once

#include <span>

#include "ring_attention/core/token_range.hpp"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace ring_attention::cuda {

using StreamHandle = CUstream_st*;

/// The type of q, k, v, out and dO in device memory. Sums, the state and gradients are always fp32.
enum class Type { fp32, bf16, fp16 };

/// Keys that stand at equal distances in the sequence, and where the first of them lies in the shard's memory.
struct KeyRange {
  TokenRange tokens;
  Index first;
};

constexpr int max_ranges = 2;  ///< of keys in one launch: what a zigzag shard has

/// What both directions read. All pointers are to device memory, 16-byte aligned.
///
/// A mask is two intervals to a kernel: query i sees the keys of a range whose global positions lie in visible[i], which
/// is what `Mask::visible` says, for every mask. Within a range those keys stand side by side.
struct AttentionTask {
  int batch, heads, kv_heads, dim;
  int queries;  ///< tokens of the rank's q
  int keys;     ///< tokens of the shard, all of its ranges: k and v have `keys * dim` elements a head
  int ranges;
  KeyRange range[max_ranges];
  float scale;               ///< of the scores
  const void* q;             ///< [batch][heads][queries][dim]
  const void* k;             ///< [batch][kv_heads][keys][dim]
  const void* v;             ///< [batch][kv_heads][keys][dim]
  const Interval* visible;   ///< [queries]
  const Index* position;     ///< [queries], on the keys' scale (mask offset included): for ALiBi
  const float* alibi_slope;  ///< [heads], or null: the score falls by slope * |key position - position|
};

/// Attend to one shard: (o, m, l) moves on. The algebra is that of attention/partial.hpp.
struct ForwardTask : AttentionTask {
  bool fresh;  ///< the state is empty: write it, do not read it
  float* o;    ///< [batch][heads][queries][dim]: sum 2^(s - m) v
  float* m;    ///< [batch][heads][queries]: the largest score so far, in units of log 2; -inf: none
  float* l;    ///< [batch][heads][queries]: sum 2^(s - m)
};

/// Differentiate one shard, from the global lse and delta. Rows that see no key have lse = -inf.
struct BackwardTask : AttentionTask {
  const void* grad_out;  ///< [batch][heads][queries][dim]: dO
  const float* lse;      ///< [batch][heads][queries], natural logarithm, over all keys of all shards
  const float* delta;    ///< [batch][heads][queries]: rowsum(dO * O)
  float* grad_q;         ///< [batch][heads][queries][dim]: dQ, added to
  float* grad_k;         ///< [batch][kv_heads][keys][dim]: dK of this shard, added to
  float* grad_v;         ///< [batch][kv_heads][keys][dim]: dV of this shard, added to
};

/// What a kernel may ask of the device.
struct DeviceTraits {
  int compute_capability;     ///< 90 for 9.0
  int multiprocessors;        ///< to use: the ring leaves some to NCCL
  int shared_bytes_of_block;  ///< with the opt-in
};

/// One step of the ladder. `launch` enqueues and returns; it throws Error when CUDA refuses.
template <class Task>
struct Kernel {
  int step;              ///< on the ladder of lesson 11
  const char* name;      ///< for reports and `--kernel`
  const char* computes;  ///< one line for tables: "bf16 mma.sync, cp.async, two stages"
  bool deterministic;    ///< the same bits every time: no atomics
  /// Can it do this on this device? Any number of queries and keys, any ranges, any head ratio.
  bool (*takes)(const DeviceTraits&, Type, int dim);
  void (*launch)(const Task&, Type, const DeviceTraits&, StreamHandle);
};
using ForwardKernel = Kernel<ForwardTask>;
using BackwardKernel = Kernel<BackwardTask>;

/// The whole ladder, in order.
[[nodiscard]] std::span<const ForwardKernel> forward_kernels();
[[nodiscard]] std::span<const BackwardKernel> backward_kernels();

/// delta[row] = rowsum(dO * O), one for each of `rows` rows of `dim`; out is fp32, dO of `type`.
void row_dots(const float* out, const void* grad_out, float* delta, Index rows, int dim, Type type,
              StreamHandle stream);

}  // namespace ring_attention::cuda
