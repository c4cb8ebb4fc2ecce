/// \file
/// The interface between the engines of the GPU, which are plain C++, and the kernels, which are `.cu` files.
///
/// The interface consists of plain structs and function pointers. Kernels include no more of the standard library than
/// they need: nvcc parses each header twice, and g++ once more. A kernel gets one shard of keys and all queries of the
/// rank. What it accumulates carries over to the next step of the ring.
#pragma once

#include <span>

#include "ring_attention/attention/dropout.hpp"
#include "ring_attention/core/index.hpp"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace ring_attention {
struct Shape;
}

namespace ring_attention::cuda {

using StreamHandle = CUstream_st*;

/// The type of q, k, v, out and dO in device memory. Sums, the state and gradients are always fp32.
enum class Type { fp32, bf16, fp16 };

/// A range of keys: their global positions, and the index of the first of them in the shard's memory.
struct KeyRange {
  TokenRange tokens;
  Index first;
};

constexpr int max_ranges = 2;  ///< of keys in one launch; a zigzag shard has two

/// The inputs of both directions. All pointers are to device memory, 16-byte aligned.
///
/// A kernel sees every mask as one interval per query: query i sees the keys with global positions in visible[i], which
/// is one part of `Mask::visible(i)`. Each part is a launch. Within a range those keys are contiguous in memory.
struct AttentionTask {
  int batch, heads, kv_heads, dim;
  int queries;  ///< tokens of the rank's q
  int keys;     ///< tokens of the shard, all of its ranges: k and v have `keys * dim` elements per head
  int ranges;
  KeyRange range[max_ranges];
  float scale;               ///< of the scores
  const void* q;             ///< [batch][heads][queries][dim]
  const void* k;             ///< [batch][kv_heads][keys][dim]
  const void* v;             ///< [batch][kv_heads][keys][dim]
  const Interval* visible;   ///< [queries]
  const Index* position;     ///< [queries], in key positions (mask offset included): for ALiBi
  const float* alibi_slope;  ///< [heads], or null: the score decreases by slope * |key position - position|
};

/// The forward with one shard: updates (o, m, l). The algebra is that of attention/partial.hpp. The last launch divides:
/// that saves reading and writing all of o once more.
struct ForwardTask : AttentionTask {
  bool fresh;  ///< the state is empty: the kernel writes it and does not read it
  float* o;    ///< [batch][heads][queries][dim]: sum 2^(s - m) v
  float* m;  ///< [batch][heads][queries]: the largest score so far, in units of log 2; -inf if there is none
  float* l;  ///< [batch][heads][queries]: sum 2^(s - m)
  bool last = false;  ///< no keys follow: the kernel does what finish_rows does. l is not defined afterwards
};

/// The backward with one shard, from the global lse and delta. Rows that see no key have lse = -inf.
struct BackwardTask : AttentionTask {
  const void* grad_out;  ///< [batch][heads][queries][dim]: dO
  const float* lse;      ///< [batch][heads][queries], natural logarithm, over all keys of all shards
  const float* delta;    ///< [batch][heads][queries]: rowsum(dO * O)
  float* grad_q;         ///< [batch][heads][queries][dim]: dQ, added to
  float* grad_k;         ///< [batch][kv_heads][keys][dim]: dK of this shard, added to
  float* grad_v;         ///< [batch][kv_heads][keys][dim]: dV of this shard, added to
};

/// A dense bias (attention/bias.hpp), a softcap and dropout (attention/dropout.hpp): what a task may have for each pair of a query
/// and a key. Pointers are to device memory.
struct PairTerms {
  int bias_batches = 1, bias_heads = 1;  ///< 1 broadcasts
  Index positions = 0;                   ///< keys of the whole sequence: the columns of the bias
  const float* bias =
      nullptr;  ///< [bias_batches][bias_heads][queries][positions], or null. -inf masks the key
  float* grad_bias = nullptr;           ///< like bias: dBias, added to by the backward
  const DropoutRow* dropout = nullptr;  ///< [batch][heads][queries], or null: no pair is dropped
  std::uint32_t threshold = 0;          ///< a pair is kept if its word is less
  float kept = 1;                       ///< the factor of a kept pair
  float softcap = 0;                    ///< a product x becomes softcap tanh(x / softcap); 0: it stays

  [[nodiscard]] bool any() const { return bias != nullptr || dropout != nullptr || softcap != 0; }
};

/// A task with these, for kernels that support them. A task without them has a type of its own, so that they cost it
/// nothing.
template <class Task>
struct WithPairs : Task {
  PairTerms pairs;
};

/// The properties of a device that a kernel depends on.
struct DeviceTraits {
  int compute_capability;     ///< 90 for 9.0
  int multiprocessors;        ///< (SMs) that kernels may use: the ring reserves some for NCCL
  int shared_bytes_of_block;  ///< the limit with opt-in
};

/// One kernel. `launch` enqueues it and returns; it throws Error if CUDA reports one.
template <class Task>
struct Kernel {
  int number;            ///< in the order of lesson 11 and of the file names
  const char* name;      ///< by which users choose it
  const char* computes;  ///< one line for tables: "mma.sync, ldmatrix, cp.async in two stages"
  bool deterministic;    ///< gives the same bits in every run: no atomics
  /// True if it supports this type and dim on this device. It then supports any number of queries, keys and ranges, and
  /// any ratio of heads.
  bool (*takes)(const DeviceTraits&, Type, int dim);
  void (*launch)(const Task&, Type, const DeviceTraits&, StreamHandle);
  /// `launch` with a bias, a softcap or dropout; null if the kernel supports none of them.
  void (*launch_with_pairs)(const WithPairs<Task>&, Type, const DeviceTraits&, StreamHandle) = nullptr;
  bool automatic = true;  ///< "auto" may choose it: false for a new kernel until a GPU has run and timed it
};
using ForwardKernel = Kernel<ForwardTask>;
using BackwardKernel = Kernel<BackwardTask>;

/// All kernels, in the order of their numbers. A new kernel is added to kernel_list.cpp and to src/cmake/sources.cmake.
[[nodiscard]] std::span<const ForwardKernel> forward_kernels();
[[nodiscard]] std::span<const BackwardKernel> backward_kernels();

/// to[i] = from[i], rounded to nearest even. Numbers beyond the largest fp16 or bf16 become infinity.
void narrow(const float* from, void* to, Index count, Type type, StreamHandle stream);
/// to[i] = from[i], exactly.
void widen(const void* from, float* to, Index count, Type type, StreamHandle stream);
/// sum[i] += term[i].
void add(float* sum, const float* term, Index count, StreamHandle stream);

/// The end of a forward without a last launch. In each of `rows` rows and in place: o becomes out = o / l, and m becomes lse = log 2
/// * m + log l. A row with l = 0 has seen no key: out = 0 and lse = -inf for any m.
/// \param o  [rows][dim]
/// \param m,l  [rows]
void finish_rows(float* o, float* m, const float* l, Index rows, int dim, StreamHandle stream);

/// Merges each row with its head's sink (attention/sink.hpp), after finish_rows and in place: lse becomes
/// log(e^lse + e^sink), and out is multiplied by e^(lse before - lse after).
/// \param out    [batch][heads][queries][dim]
/// \param lse    [batch][heads][queries]
/// \param sinks  [heads]
void add_sinks(float* out, float* lse, const float* sinks, const Shape& out_shape, StreamHandle stream);

/// delta[row] = rowsum(dO * O) for each of `rows` rows of `dim` elements. out is fp32, dO has `type`.
void row_dots(const float* out, const void* grad_out, float* delta, Index rows, int dim, Type type,
              StreamHandle stream);

}  // namespace ring_attention::cuda
