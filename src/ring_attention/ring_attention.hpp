/// \file
/// Ring Attention in one call: `forward` and `backward` for a program that has MPI and its own arrays.
///
///     const ra::Placement placement(ra::PlacementKind::zigzag, tokens, ranks);
///     const ra::Scoring scoring{1 / std::sqrt(64.0), ra::Mask::causal()};
///     const auto result = ra::forward(MPI_COMM_WORLD, q, k, v, placement, scoring);
///     const auto gradients = ra::backward(MPI_COMM_WORLD, q, k, v, result, grad_out, placement, scoring);
///
/// Each rank gives its shard of q, k and v and gets its rows of the result. Arrays are in host memory, the CPU
/// computes. All sums are in the type of the arrays, float or double.
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
/// Both calls are collective: every rank of the communicator makes them, in the same order. They work on a duplicate
/// of the communicator, so that messages of the caller, pending ones too, stay apart from those of the ring. Only the
/// calling thread calls MPI. With options.threads = 1 every thread level of MPI is enough; more threads need
/// MPI_THREAD_FUNNELED.
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

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/attention/function_engine.hpp"
#include "ring_attention/attention/mask.hpp"
#include "ring_attention/cpu/isa.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/partition.hpp"
#include "ring_attention/ring/placement.hpp"

namespace ring_attention {

/// How the call computes. `transport`, `partition` and `ulysses` must be the same on all ranks.
struct Options {
  int threads = 1;  ///< of this rank; the result has the same bits
  TransportKind transport = TransportKind::overlapped;
  Isa isa = best_isa();  ///< instruction set; others round differently
  Partition partition = Partition::ring;
  int ulysses = 1;         ///< U of Partition::hybrid: the number of ranks that share heads
  Progress progress = {};  ///< the calling thread calls it between tiles, and after every hop of a ring
};

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
