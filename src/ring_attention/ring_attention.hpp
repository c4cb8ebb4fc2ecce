/// \file
/// Ring Attention for a program that has MPI and its own arrays, in the memory of the host or of GPUs.
///
///     const ra::Placement placement(ra::PlacementKind::zigzag, tokens, ranks);
///     const ra::Scoring scoring{1 / std::sqrt(64.0), ra::Mask::causal()};
///     const auto result = ra::forward(MPI_COMM_WORLD, q, k, v, placement, scoring);
///     const auto gradients = ra::backward(MPI_COMM_WORLD, q, k, v, result, grad_out, placement, scoring);
///
/// Each rank passes its shard of q, k and v and gets its rows of the result. A program that makes more than one call keeps
/// an `Attention`, which also takes arrays in the memory of a GPU, on the caller's stream:
///
///     ra::Attention attention(MPI_COMM_WORLD);
///     attention.forward<ra::Bf16>(stream, {q, k, v}, {out, lse}, placement, scoring);
///     attention.backward<ra::Bf16>(stream, {q, k, v}, {out, lse}, grad_out, {dq, dk, dv}, placement, scoring);
///     attention.wait();
///
/// An option says how the ranks divide the work (parallel/partition.hpp); the default is a ring of all ranks. Where U ranks
/// share heads, the placement is over the comm size / U ranks of a ring, and each rank holds a slice of one of its shards:
///
///     ra::Options options;
///     options.partition = ra::Partition::hybrid;
///     options.ulysses = 2;
///     const ra::Placement placement(ra::PlacementKind::zigzag, tokens, ranks / 2);
///     const ra::TokenRanges mine = ra::RankGrid(rank, ranks, 2).slice(placement);  // which tokens q, k, v hold
///
/// All calls are collective: every rank of the communicator makes them, in the same order. They use a duplicate of the
/// communicator, so the caller's messages, even pending ones, cannot mix with the ring's. Only the calling thread calls MPI.
/// With options.threads = 1 every thread level of MPI is enough; more threads need MPI_THREAD_FUNNELED.
///
/// Errors:
/// - Bad arguments, arguments that differ between ranks, heads or ranks that the partition cannot divide, and too little
///   memory for a ring or an all-gather: all ranks throw AgreedError with the same text, before its first message.
/// - MPI is not initialised, the communicator is MPI_COMM_NULL or an intercommunicator: InputError; nothing is sent.
/// - A later failure on one rank only, such as an Error with MPI's text, std::system_error when a thread cannot start, or
///   std::bad_alloc in an all-to-all of ranks that share heads:
///   that rank throws. The other ranks wait for its messages, so the caller must end the job (MPI_Abort).
/// The library prints nothing and never ends the process.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, algorithm 1 (forward) and appendix A (backward);
/// the files of `parallel` name the sources of the other partitions.
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/attention/function_engine.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/attention/views.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/cpu/isa.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/observer.hpp"
#include "ring_attention/parallel/partition.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/transports/peers.hpp"

struct CUstream_st;

namespace ring_attention {

/// \addtogroup public_api
/// @{

/// A CUDA stream, cudaStream_t. Null is the default stream. (This header includes none of CUDA's.)
using GpuStream = CUstream_st*;

/// How a GPU computes, for arrays in its memory. The same on all ranks.
struct GpuOptions {
  enum class Transport {
    automatic,  ///< nccl where the library has it, otherwise staged
    nccl,       ///< from GPU to GPU
    staged      ///< through the memory of the host, over MPI: the host waits, and allocates. Same bits
  };
  Transport transport = Transport::automatic;
  std::string kernel = "auto";                ///< as the program's --kernel
  std::string backward_kernel = "auto";       ///< as --backward-kernel
  std::chrono::duration<double> timeout{60};  ///< of NCCL, for one message, once this rank is ready for it
  bool share_gpu = false;                     ///< lets ranks share a GPU over NCCL, to try it out
};

/// How the call computes. `partition` and `ulysses` must be the same on all ranks.
struct Options {
  int threads = 1;       ///< of this rank; any number gives the same bits
  Isa isa = best_isa();  ///< instruction set; another one rounds differently
  Partition partition = Partition::ring;
  int ulysses = 1;  ///< U of Partition::hybrid: the number of ranks that share heads
  /// Are the gradients of numbers, such as sinks, summed over the ranks? Otherwise they are those of this rank's rows.
  bool sum_numbers = true;
  /// Tokens per tile, for example Tiling::default_size: all results then have the same bits for any number of ranks and
  /// threads and for every placement and partition (cpu/same_bits.hpp). In float only, on the cores of the host. The
  /// placement must consist of whole tiles: Placement(kind, Tiling(tile, documents).cuts(tokens), ranks).
  /// 0: rounding depends on the ranks.
  Index same_bits = 0;
  /// The calling thread tells them what it does (parallel/observer.hpp). They outlive the
  /// Attention, or are taken out of its options before: wait() and the destructor tell them as well.
  Observers observers = {};
  GpuOptions gpu = {};
};

/// The arrays that attention reads; see forward() below. Without a bias, `bias` is std::nullopt on all ranks.
template <class T>
struct AttentionArrays {
  View<const T> q, k, v;
  std::optional<View<const SumOf<T>>> bias = {};

  [[nodiscard]] TermArrays<std::optional<View<const SumOf<T>>>> terms() const { return {bias}; }
};

/// The element types of arrays in the memory of the host, and of a GPU. Bf16 and Fp16 have the layout of __nv_bfloat16 and
/// __half.
template <class T>
concept HostNumber = std::same_as<T, float> || std::same_as<T, double>;
template <class T>
concept GpuNumber = std::same_as<T, float> || std::same_as<T, Bf16> || std::same_as<T, Fp16>;

struct AttentionState;

/// Attention for a program that calls it again and again, such as a training loop. It keeps what is expensive to make: the
/// duplicate of the communicator, the communicators of its partition, and for a GPU NCCL's communicators and the memory.
///
/// Arguments, results and errors are the same as for the functions below. All functions except wait() are collective,
/// including the constructor and the destructor. After an Error no further call is possible on any rank.
///
/// Arrays of a GPU. All pointers are to the memory of one GPU: the one that is current when this object gets its first
/// arrays of a GPU. The caller owns the arrays. q, k, v and dO have the type T; bias and results are float.
/// - Order: the work starts after everything that is already on `stream`, and what is enqueued on `stream` later starts
///   after the results are complete. So as soon as the call returns, the caller may free or overwrite arrays in stream order.
/// - The call enqueues its work and returns. The host waits until the other ranks also make the call: one MPI_Allreduce, or
///   Peers::unite, of 32 bytes. It waits for the GPU in three cases: in the first call for given shapes, placement, scoring
///   and options, which allocates memory and makes communicators; with Transport::staged; and, as wait() does, in a backward
///   with sinks, whose gradient is summed on the host.
/// - Memory: as for forward() and backward() below, and the results a second time. It stays allocated until this object is
///   destroyed, so a further call that differs only in the numbers in its arrays allocates nothing.
/// - wait() throws Error if a kernel or a message has failed after the call. If a rank has noticed the failure before, the
///   next call throws AgreedError on all ranks. Only wait() detects that a message does not come within `timeout`: it then
///   ends the communication, and the stream continues with undefined results. So call wait() before anything that waits
///   for the stream without a time limit, such as cudaStreamSynchronize.
class Attention {
 public:
  /// \param comm  still belongs to the caller, who may free it \throws InputError: as \ref public_api says
  explicit Attention(MPI_Comm comm, Options options = {});
  /// Over Peers, which outlive this object: no function of MPI is called. Of a GPU's arrays the peers move the bytes with
  /// Transport::staged, and with NCCL only the ids of its communicators; that has run with ranks that are processes alone.
  explicit Attention(Peers& peers, Options options = {});
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;
  /// Waits as wait() does, but throws nothing.
  ~Attention();

  /// May be changed between two calls: `threads`, `isa` and `observers` on one rank alone, the other options on all
  /// ranks. The next call then makes the communicators that it needs.
  [[nodiscard]] Options& options();

  // ---- arrays of the host: the results are in the caller's arrays when the call returns ---------------------

  template <HostNumber T>
  void forward(const AttentionArrays<T>& arrays, const ResultViews<T>& to, const Placements& placement,
               const Scoring& scoring);
  template <HostNumber T>
  void forward(const AttentionFunction<T>& kernel, const AttentionArrays<T>& arrays, const ResultViews<T>& to,
               const Placements& placement, const Scoring& scoring);
  /// \param grad_lse  the gradient of a loss that reads lse; std::nullopt on all ranks: 0
  /// \returns the gradients of numbers, such as sinks
  template <HostNumber T>
  TermNumbers backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                       View<const T> grad_out, const GradientViews<T>& to, const Placements& placement,
                       const Scoring& scoring, std::optional<View<const T>> grad_lse = {});

  // These calls return new arrays: all ranks agree when one has no memory for them, and there is no second copy.

  template <HostNumber T>
  AttentionResult<T> forward(const AttentionArrays<T>& arrays, const Placements& placement,
                             const Scoring& scoring);
  template <HostNumber T>
  AttentionResult<T> forward(const AttentionFunction<T>& kernel, const AttentionArrays<T>& arrays,
                             const Placements& placement, const Scoring& scoring);
  template <HostNumber T>
  Gradients<T> backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                        View<const T> grad_out, const Placements& placement, const Scoring& scoring,
                        std::optional<View<const T>> grad_lse = {});

  // ---- arrays of a GPU; in the library ring_attention_cuda ------------------------------------------------

  template <GpuNumber T>
  void forward(GpuStream stream, const AttentionArrays<T>& arrays, const ResultViews<float>& to,
               const Placements& placement, const Scoring& scoring);
  template <GpuNumber T>
  TermNumbers backward(GpuStream stream, const AttentionArrays<T>& arrays,
                       const ResultViews<const float>& result, View<const T> grad_out,
                       const GradientViews<float>& to, const Placements& placement, const Scoring& scoring);
  /// The host waits until all work of earlier calls is done. \throws Error when a kernel or NCCL has failed, or a message
  /// has not come within the time-out
  void wait();

 private:
  std::unique_ptr<AttentionState> state_;
};

// Each call of a function below makes what an Attention keeps, uses it once and destroys it. The cost is a duplicate of the
// communicator, and one or two parts of it, which all ranks make together. Arrays are in the memory of the host. The
// functions return the results; an Attention that writes to the caller's arrays holds a second copy during the call.

/// out = (F * softmax(scale q k^T + bias, masked)) v, for the queries of this rank over the keys of all ranks. F are
/// the factors of the dropout; the softmax includes the sinks.
///
/// \param comm     all of its ranks make the call; it still belongs to the caller
/// \param q        `[batch, heads, tokens, dim]`: this rank's queries, in the order of `placement.queries.ranges(rank)`
/// \param k, v     `[batch, kv_heads, tokens, dim]`: this rank's keys and values, in the order of
///                 `placement.keys.ranges(rank)`; kv_heads divides heads (grouped-query attention). In the memory of the
///                 host v may have another dim than q and k, on all ranks: that of the result
/// \param placement  over the ranks of `comm`, or of one ring of a hybrid (as \ref public_api shows; over 1 rank for
///                 Ulysses); a rank may have no tokens (seq = 0, any pointer)
/// \param scoring  the same on all ranks; positions in it are global positions of the sequence. Seed, step and layer of
///                 the dropout are also the same on all ranks, because heads and positions are global.
/// \param bias     `[batch or 1, heads or 1, tokens, S of the keys]`: a row for each query of this rank, a column for
///                 each key of the sequence in the order of positions; -inf hides a key. Without a bias:
///                 std::nullopt, on all ranks.
/// \param options  how the call computes: threads, partition, the same bits (Options)
/// \returns out, like q with the dim of v, and lse `[batch, heads, tokens, 1]`, the natural logarithm of sum e^s; the caller
///          owns them. A query that sees no key has out = 0 and lse = -inf; with sinks its lse is the sink of its head.
/// \throws AgreedError, InputError, Error: as \ref public_api says
///
/// q, k and v belong to the caller; the call reads them until it returns, and does not change them.
/// Memory of a rank, in addition to the caller's arrays:
///
///     what is held                   forward                              backward
///     -----------------------------  -----------------------------------  ------------------------------------------
///     for this rank's queries        out, 2 numbers per query, a tile     dQ, the gradient of the bias, 1 number per
///                                    per thread                           query, a tile per thread
///     for the messages of a ring     four shards of K,V                   ten shards of K,V: four that travel, six
///                                                                         for their gradients
///     ... of an all-gather instead   K,V of all ranks                     three times the K,V of all ranks
///     where ranks share heads, also  q, k, v, out and bias again, in the  all arrays a second time
///                                    layout that is computed; while an
///                                    array moves, two more like it
///
/// A forward allocates its first two rows before the first message. Together with the caller's q they contain six shards:
/// q, out, and four of K,V.
///
/// Messages: each rank sends at most N - 1, each with the K,V of one rank. Where U ranks share heads: all-to-alls of U - 1
/// messages per rank for each of q, k, v, bias, out and lse, and the messages of a ring of ranks / U ranks.
/// Results are bit-for-bit identical for every transport and number of threads. One rank matches `attention_forward` bit for
/// bit, Ulysses matches one rank, a hybrid matches a ring of ranks / U ranks, and an all-gather matches the ring.
[[nodiscard]] AttentionResult<float> forward(MPI_Comm comm, View<const float> q, View<const float> k,
                                             View<const float> v, const Placements& placement,
                                             const Scoring& scoring, const Options& options = {},
                                             std::optional<View<const float>> bias = {});
[[nodiscard]] AttentionResult<double> forward(MPI_Comm comm, View<const double> q, View<const double> k,
                                              View<const double> v, const Placements& placement,
                                              const Scoring& scoring, const Options& options = {},
                                              std::optional<View<const double>> bias = {});

/// A forward with a function of the caller's in place of the library's kernel: any function that returns out and lse
/// for some queries and keys can run in the ring (attention/function_engine.hpp). Forward only, without a dense bias.
///
/// \param kernel  on each rank the calling thread calls it once for the K,V of each rank that its queries see. An exception
///                that it throws on one rank passes through, and the caller must end the job.
/// \param options  as above; `threads` and `isa` have no effect
/// Memory: what the function needs, and its result a second time.
[[nodiscard]] AttentionResult<float> forward(MPI_Comm comm, const AttentionFunction<float>& kernel,
                                             View<const float> q, View<const float> k, View<const float> v,
                                             const Placements& placement, const Scoring& scoring,
                                             const Options& options = {});
[[nodiscard]] AttentionResult<double> forward(MPI_Comm comm, const AttentionFunction<double>& kernel,
                                              View<const double> q, View<const double> k,
                                              View<const double> v, const Placements& placement,
                                              const Scoring& scoring, const Options& options = {});

/// The gradients of sum(out * grad_out) over all ranks: dQ of this rank's queries, dK and dV of its keys.
///
/// \param result    what `forward` returned on this rank for the same q, k, v, placement and scoring
/// \param grad_out  dO, like out
/// \returns dQ like q, dK and dV like k and v, each summed over the queries of all ranks; the gradient of the bias, like
///          the bias and summed over what broadcasts; and the gradient of the sinks, on every rank the sum over all ranks.
///          The caller owns them.
/// \param options  the same as in `forward`
///
/// For the other arguments, the errors, the ownership of arrays and the memory see `forward`.
/// Messages: each rank sends at most N - 1 with K,V, and N with dK,dV (none of either when N = 1). Where U ranks share heads:
/// all-to-alls for each of q, k, v, bias, out, lse, dO, dQ, dK, dV and the gradient of the bias.
/// The same partitions match bit for bit as in `forward`, with these exceptions: the gradient of a KV head that several
/// ranks have is the sum of their gradients in the order of the ranks, and so is the gradient of a bias that broadcasts over
/// heads. The gradients of sinks are sums over the ranks in their order.
[[nodiscard]] Gradients<float> backward(MPI_Comm comm, View<const float> q, View<const float> k,
                                        View<const float> v, const AttentionResult<float>& result,
                                        View<const float> grad_out, const Placements& placement,
                                        const Scoring& scoring, const Options& options = {},
                                        std::optional<View<const float>> bias = {});
[[nodiscard]] Gradients<double> backward(MPI_Comm comm, View<const double> q, View<const double> k,
                                         View<const double> v, const AttentionResult<double>& result,
                                         View<const double> grad_out, const Placements& placement,
                                         const Scoring& scoring, const Options& options = {},
                                         std::optional<View<const double>> bias = {});

/// @}

}  // namespace ring_attention
