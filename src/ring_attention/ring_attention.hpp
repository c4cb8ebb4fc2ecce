/// \file
/// Ring Attention for a program that has MPI and its own arrays, in the memory of the host or of GPUs.
///
///     const ra::Placement placement(ra::PlacementKind::zigzag, tokens, ranks);
///     const ra::Scoring scoring{1 / std::sqrt(64.0), ra::Mask::causal()};
///     const auto result = ra::forward(MPI_COMM_WORLD, q, k, v, placement, scoring);
///     const auto gradients = ra::backward(MPI_COMM_WORLD, q, k, v, result, grad_out, placement, scoring);
///
/// Each rank gives its shard of q, k and v and gets its rows of the result. A program that calls more than once keeps an
/// `Attention`, which also takes arrays of a GPU, on a stream of the caller:
///
///     ra::Attention attention(MPI_COMM_WORLD);
///     attention.forward<ra::Bf16>(stream, {q, k, v}, {out, lse}, placement, scoring);
///     attention.backward<ra::Bf16>(stream, {q, k, v}, {out, lse}, grad_out, {dq, dk, dv}, placement, scoring);
///     attention.wait();
///
/// How the ranks divide the work is an option (parallel/partition.hpp); a ring of all ranks is the default. Where U ranks
/// share heads, the placement is over the ranks of a ring, comm size / U, and a rank holds a slice of a shard of it:
///
///     ra::Options options;
///     options.partition = ra::Partition::hybrid;
///     options.ulysses = 2;
///     const ra::Placement placement(ra::PlacementKind::zigzag, tokens, ranks / 2);
///     const ra::TokenRanges mine = ra::RankGrid(rank, ranks, 2).slice(placement);  // which tokens q, k, v hold
///
/// All calls are collective: every rank of the communicator makes them, in the same order. They work on a duplicate of the
/// communicator, so that messages of the caller, pending ones too, stay apart from those of the ring. Only the calling
/// thread calls MPI. With options.threads = 1 every thread level of MPI is enough; more threads need MPI_THREAD_FUNNELED.
///
/// Errors:
/// - Bad arguments, arguments that differ between ranks, and too little memory: all ranks throw AgreedError with the
///   same message, before the first message of the ring. So do heads or ranks that a partition cannot divide.
/// - MPI is not initialised, the communicator is MPI_COMM_NULL or an intercommunicator: InputError; nothing is sent.
/// - A later failure that one rank alone knows, such as an Error with MPI's text, or std::system_error when a thread
///   cannot start: that rank throws. The other ranks wait for its messages: the caller ends the job (MPI_Abort).
/// The library prints nothing and never ends the process.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, algorithm 1 (forward) and appendix A (backward);
/// for the other partitions see the files of `parallel`.
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/attention/function_engine.hpp"
#include "ring_attention/attention/mask.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/cpu/isa.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/partition.hpp"
#include "ring_attention/ring/placement.hpp"

struct CUstream_st;

namespace ring_attention {

/// A stream of CUDA: cudaStream_t. Null is the default stream. (This header needs none of CUDA's.)
using GpuStream = CUstream_st*;

/// How a GPU computes, for arrays in its memory. The same on all ranks.
struct GpuOptions {
  enum class Transport {
    automatic,  ///< nccl where the library has it, otherwise staged
    nccl,       ///< from GPU to GPU
    staged      ///< through the memory of the host, over MPI: the host waits, and allocates. The same bits
  };
  Transport transport = Transport::automatic;
  std::string kernel = "auto";                ///< as --kernel of the program
  std::string backward_kernel = "auto";       ///< as --backward-kernel
  std::chrono::duration<double> timeout{60};  ///< of NCCL, for one message when this rank is ready for it
  bool share_gpu = false;                     ///< lets ranks share a GPU over NCCL, to try it out
};

/// How the call computes. `transport`, `partition` and `ulysses` must be the same on all ranks.
struct Options {
  int threads = 1;  ///< of this rank; the result has the same bits
  TransportKind transport = TransportKind::overlapped;
  Isa isa = best_isa();  ///< instruction set; others round differently
  Partition partition = Partition::ring;
  int ulysses = 1;  ///< U of Partition::hybrid: the number of ranks that share heads
  /// Tokens of a tile, Tiling::default_size for example: the same bits of all results on any number of ranks,
  /// for every placement, partition and number of threads (cpu/same_bits.hpp). In float, on the cores of the host. The
  /// placement is made of whole tiles: Placement(kind, tokens, ranks, Tiling(tile, documents)). 0: rounding depends on the ranks.
  Index same_bits = 0;
  /// The calling thread calls it between tiles, after every hop of a ring, and while it waits for a GPU.
  Progress progress = {};
  GpuOptions gpu = {};
};

/// What attention reads; see forward() below. Without a bias it is empty.
template <class T>
struct AttentionArrays {
  View<const T> q, k, v;
  View<const SumOf<T>> bias = {};
};

/// The types of arrays in the memory of the host, and of a GPU. Bf16 and Fp16 have the layout of __nv_bfloat16 and __half.
template <class T>
concept HostNumber = std::same_as<T, float> || std::same_as<T, double>;
template <class T>
concept GpuNumber = std::same_as<T, float> || std::same_as<T, Bf16> || std::same_as<T, Fp16>;

struct AttentionState;

/// Attention that a program calls again and again, as a training loop does. It holds what is expensive: the duplicate of
/// the communicator, the communicators of its partition, and for a GPU those of NCCL and the memory.
///
/// Arguments, results and errors are those of the functions below. All functions but wait() are collective, also the
/// constructor and the destructor. After an Error no further call is possible, on any rank.
///
/// Arrays of a GPU. All pointers are to memory of one GPU, the one that is current when this object gets its first such
/// arrays. They stay with the caller. q, k, v and dO have the type T; bias and results are float.
/// - Order: the work begins when what is already on `stream` is done, and what is enqueued on `stream` later begins when the
///   results are there. So the caller may free or overwrite arrays in the order of `stream` as soon as the call returns.
/// - The call enqueues and returns. The host waits for the other ranks to make the call: one MPI_Allreduce of 32 bytes. It
///   waits for the GPU in a first call with its shapes, placement, scoring and options, which allocates memory and makes
///   communicators; with Transport::staged; and, as wait() does, in a backward with sinks, whose gradient is summed on the host.
/// - Memory: that of forward() and backward(), and the results a second time. It stays allocated until this object is
///   destroyed: a further call with the same arguments, but for the numbers, allocates nothing.
/// - A kernel or a message that fails later is an Error of wait(). If a rank has seen it before, the next call is an
///   AgreedError on all ranks. Only wait() sees that a message does not come within `timeout`: it then ends the
///   communication, and the stream goes on with undefined results. So wait() comes before a call that waits for the stream
///   without a time limit, such as cudaStreamSynchronize.
class Attention {
 public:
  /// \param comm  stays the caller's, who may free it \throws InputError: see above
  explicit Attention(MPI_Comm comm, Options options = {});
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;
  /// Waits as wait() does, but without an error.
  ~Attention();

  /// May be changed between two calls: `threads`, `isa` and `progress` on one rank alone, the others on all ranks. The next
  /// call then makes the communicators that it needs.
  [[nodiscard]] Options& options();

  // ---- arrays of the host: the results are there when the call returns ------------------------------------

  template <HostNumber T>
  [[nodiscard]] AttentionResult<T> forward(const AttentionArrays<T>& arrays, const Placements& placement,
                                           const Scoring& scoring);
  template <HostNumber T>
  void forward(const AttentionArrays<T>& arrays, const ResultViews<T>& to, const Placements& placement,
               const Scoring& scoring);
  template <HostNumber T>
  [[nodiscard]] AttentionResult<T> forward(const AttentionFunction<T>& kernel,
                                           const AttentionArrays<T>& arrays, const Placements& placement,
                                           const Scoring& scoring);
  template <HostNumber T>
  [[nodiscard]] Gradients<T> backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                                      View<const T> grad_out, const Placements& placement,
                                      const Scoring& scoring);
  /// \returns the gradients of the sinks
  template <HostNumber T>
  std::vector<double> backward(const AttentionArrays<T>& arrays, const ResultViews<const T>& result,
                               View<const T> grad_out, const GradientViews<T>& to,
                               const Placements& placement, const Scoring& scoring);

  // ---- arrays of a GPU; in the library ring_attention_cuda ------------------------------------------------

  template <GpuNumber T>
  void forward(GpuStream stream, const AttentionArrays<T>& arrays, const ResultViews<float>& to,
               const Placements& placement, const Scoring& scoring);
  template <GpuNumber T>
  std::vector<double> backward(GpuStream stream, const AttentionArrays<T>& arrays,
                               const ResultViews<const float>& result, View<const T> grad_out,
                               const GradientViews<float>& to, const Placements& placement,
                               const Scoring& scoring);
  /// The host waits until all work of earlier calls is done. \throws Error when a kernel or NCCL has failed, or a message
  /// has not come within the time-out
  void wait();

 private:
  std::unique_ptr<AttentionState> state_;
};

// The functions below are an Attention that is made, used once and destroyed. What that costs a call: a duplicate of the
// communicator, and one or two parts of it, which all ranks make together. Arrays are in the memory of the host.

/// out = (F * softmax(scale q k^T + bias, masked)) v, for the queries of this rank over the keys of all ranks. F are
/// the factors of the dropout; the softmax includes the sinks.
///
/// \param comm     all its ranks call; stays the caller's
/// \param q        `[batch, heads, tokens, dim]`: this rank's queries, in the order of `placement.queries.ranges(rank)`
/// \param k, v     `[batch, kv_heads, tokens, dim]`: this rank's keys and values, in the order of
///                 `placement.keys.ranges(rank)`; kv_heads divides heads (grouped-query attention)
/// \param placement  made for as many ranks as `comm` has, or as a ring of a hybrid has (see above; 1 for Ulysses); a rank
///                 may have no tokens (seq = 0, any pointer)
/// \param scoring  the same on all ranks; positions in it are global positions of the sequence. The dropout needs no
///                 other seed, step or layer on another rank: heads and positions are global.
/// \param bias     `[batch or 1, heads or 1, tokens, S of the keys]`: a row for each query of this rank, a column for
///                 each key of the sequence in the order of positions; -inf hides a key. Empty: none, on all ranks.
/// \returns out, like q, and lse `[batch, heads, tokens, 1]`, the natural logarithm of sum e^s; the caller owns them.
///          A query that sees no key has out = 0 and lse = -inf, or with sinks the sink of its head.
/// \throws AgreedError, InputError, Error: see above
///
/// q, k and v stay with the caller, unchanged, and are read until the call returns.
/// Memory: with the caller's q six shards (q, out, and four of K,V for the messages) and a tile a thread; beside them
/// the caller's k and v, and 2 numbers a query. All is allocated before the first message. An all-gather has the K,V of all
/// ranks in place of the four shards. Where ranks share heads, they have q, k, v, out and the bias a second time, in the
/// layout that they compute, and while an array moves two more arrays like it.
/// Messages: N - 1 a rank, each with the K,V of one rank. Where U ranks share heads: all-to-alls of U - 1 messages a rank
/// for each of q, k, v, bias, out and lse, and ring messages as of ranks / U ranks.
/// The same bits for every transport and number of threads, and, on one rank, as `attention_forward`. Ulysses has the bits
/// of one rank, a hybrid those of a ring of ranks / U, an all-gather those of the ring.
[[nodiscard]] AttentionResult<float> forward(MPI_Comm comm, View<const float> q, View<const float> k,
                                             View<const float> v, const Placements& placement,
                                             const Scoring& scoring, const Options& options = {},
                                             View<const float> bias = {});
[[nodiscard]] AttentionResult<double> forward(MPI_Comm comm, View<const double> q, View<const double> k,
                                              View<const double> v, const Placements& placement,
                                              const Scoring& scoring, const Options& options = {},
                                              View<const double> bias = {});

/// The same with a function of the caller in place of the library's kernel: any function that returns out and lse for some
/// queries and keys runs in the ring (attention/function_engine.hpp). Forward only, without a dense bias.
///
/// \param kernel  is called by the calling thread, on each rank, once for the K,V of each rank that its queries see. What it
///                throws on one rank passes through, and the caller ends the job.
/// The options `threads` and `isa` change nothing. Memory: that of the function, and its result a second time.
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
/// \param grad_out  dO, like q
/// \returns dQ like q, dK and dV like k and v, each summed over the queries of all ranks; the gradient of the bias, like
///          the bias and summed over what broadcasts; and that of the sinks, on every rank the sum over all ranks.
///          The caller owns them.
///
/// The other arguments, the errors and who owns what are those of `forward`.
/// Memory: dQ, a second bias, ten shards of K,V (four that travel, six for their gradients), a tile a thread and 1 number a query.
/// An all-gather has three times the K,V of all ranks; where ranks share heads, all arrays a second time.
/// Messages: N - 1 a rank with K,V and N with dK,dV (none of either when N = 1). Where U ranks share heads: all-to-alls for
/// each of q, k, v, bias, out, lse, dO, dQ, dK, dV and the gradient of the bias.
/// The bits are those of `forward`'s partition, except that a K,V head that several ranks have is the sum of theirs in the
/// order of the ranks, and so are the gradients of a bias that broadcasts over heads. The gradients of sinks are sums over
/// the ranks in the order of MPI.
[[nodiscard]] Gradients<float> backward(MPI_Comm comm, View<const float> q, View<const float> k,
                                        View<const float> v, const AttentionResult<float>& result,
                                        View<const float> grad_out, const Placements& placement,
                                        const Scoring& scoring, const Options& options = {},
                                        View<const float> bias = {});
[[nodiscard]] Gradients<double> backward(MPI_Comm comm, View<const double> q, View<const double> k,
                                         View<const double> v, const AttentionResult<double>& result,
                                         View<const double> grad_out, const Placements& placement,
                                         const Scoring& scoring, const Options& options = {},
                                         View<const double> bias = {});

}  // namespace ring_attention
