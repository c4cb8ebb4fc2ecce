/// \file
/// Ring Attention for a program that has MPI and its own arrays, in the memory of the host.
///
///     const ra::Attention ring{ra::mpi(MPI_COMM_WORLD)};
///     const ra::Placement placement(ra::PlacementKind::zigzag, tokens, ranks);
///     const ra::Scoring scoring{1 / std::sqrt(64.0), ra::Mask::causal()};
///     const auto result = ra::forward(ring, q, k, v, placement, scoring);
///     const auto gradients = ra::backward(ring, q, k, v, result, grad_out, placement, scoring);
///
/// Each rank passes its shard of q, k and v and gets its rows of the result. An Attention says over whom, who computes and how
/// the work is divided. Where U ranks share heads, the placement is over the ranks / U ranks of a
/// ring, and each rank holds a slice of one of its shards:
///
///     const ra::Attention both{ra::mpi(MPI_COMM_WORLD), ra::cores(4), ra::hybrid(2)};
///     const ra::Placement placement(ra::PlacementKind::zigzag, tokens, ranks / 2);
///     const ra::TokenRanges mine = both.division.grid(rank, ranks).slice(placement);  // which tokens q, k, v hold
///
/// A feature is a header that a caller includes, and an object that it gives:
///
///     header                           what it adds
///     -------------------------------  -----------------------------------------------------------------------------
///     gpu_attention.hpp                GpuAttention: arrays in the memory of a GPU, on the caller's stream
///     partitions.hpp                   ulysses(), hybrid(U), all_gather() in place of ring()
///     peer_ranks.hpp                   peers(p) in place of mpi(comm): messages by an object of the caller's
///     observed_call.hpp                observed(ranks, observers), observed(processor, observers)
///     parallel/same_bits_processor.hpp same_bits(tile) in place of cores(): the same bits on any number of ranks
///     parallel/function_device.hpp     kernel(function) in place of cores(): a kernel of the caller's
///     parallel/balance/balanced.hpp    balanced(): placements for any mask
///
/// All calls are collective: every rank of the communicator makes them, in the same order. They use a duplicate of the
/// communicator, so the caller's messages, even pending ones, cannot mix with the ring's. Only the calling thread calls MPI.
/// With cores(1) every thread level of MPI is enough; more threads need MPI_THREAD_FUNNELED.
///
/// Errors:
/// - Bad arguments, arguments that differ between ranks, heads or ranks that the partition cannot divide, and too little
///   memory for a ring or an all-gather: all ranks throw AgreedError with the same text, before its first message.
/// - A later failure on one rank only, such as an Error with MPI's text, std::system_error when a thread cannot start, or
///   std::bad_alloc in an all-to-all of ranks that share heads: that rank throws. The other ranks wait for its messages, so the
///   caller must end the job (MPI_Abort). After an Error no further call is possible on any rank.
/// The library prints nothing and never ends the process.
///
/// Source: Liu, Zaharia, Abbeel, Ring Attention, arXiv 2310.01889, algorithm 1 (forward) and appendix A (backward);
/// the files of `parallel` name the sources of the other partitions.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/attention/views.hpp"
#include "ring_attention/attention_ranks.hpp"
#include "ring_attention/call.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/parallel/processor.hpp"
#include "ring_attention/ring/placement.hpp"

namespace ring_attention {

/// \addtogroup public_api
/// @{

/// Over whom, who computes, and how the work is divided. `ranks` keep what is expensive to make, so a program that makes
/// more than one call keeps them; the rest may change from call to call.
struct Attention {
  std::shared_ptr<AttentionRanks> ranks;
  Processor processor = cores();
  Division division = ring();  ///< the same on all ranks
  /// true: gradients of numbers, such as sinks, are sums over all ranks; false: over this rank's rows. The same on all ranks
  bool sum_numbers = true;
};

/// The type of the numbers of a view or a tensor; and a parameter that does not decide a template's type.
template <class Array>
using NumberOf = std::remove_cvref_t<decltype(*std::declval<const Array&>().data())>;
template <class T>
using Given = std::type_identity_t<T>;

/// The element types of arrays in the memory of the host.
template <class T>
concept HostNumber = std::same_as<T, float> || std::same_as<T, double>;

namespace detail {

template <class T>
AttentionResult<T> attend(const Attention& by, const AttentionArrays<T>& arrays, const Placements& placement,
                          const Scoring& scoring, const std::optional<ResultViews<T>>& to);
template <class T>
Gradients<T> differentiate(const Attention& by, const AttentionArrays<T>& arrays,
                           const ResultViews<const T>& result, View<const T> grad_out,
                           const Placements& placement, const Scoring& scoring,
                           const std::optional<View<const T>>& grad_lse,
                           const std::optional<GradientViews<T>>& to);

}  // namespace detail

/// out = (F * softmax(scale q k^T + bias, masked)) v, for the queries of this rank over the keys of all ranks. F are
/// the factors of the dropout; the softmax includes the sinks.
///
/// \param by       over whom, who computes, how the work is divided: all of its ranks make the call
/// \param q        `[batch, heads, tokens, dim]`: this rank's queries, in the order of `placement.queries.ranges(rank)`
/// \param k, v     `[batch, kv_heads, tokens, dim]`: this rank's keys and values, in the order of
///                 `placement.keys.ranges(rank)`; kv_heads divides heads (grouped-query attention). In the memory of the
///                 host v may have another dim than q and k, on all ranks: that of the result
/// \param placement  over all ranks, or over those of one ring of a hybrid (as \ref public_api shows; over 1 rank for
///                 Ulysses); a rank may have no tokens (seq = 0, any pointer)
/// \param scoring  the same on all ranks; positions in it are global positions of the sequence. Seed, step and layer of
///                 the dropout are also the same on all ranks, because heads and positions are global.
/// \param bias     `[batch or 1, heads or 1, tokens, S of the keys]`: a row for each query of this rank, a column for
///                 each key of the sequence in the order of positions; -inf hides a key. Without a bias:
///                 std::nullopt, on all ranks.
/// \param to       where the result goes: it is complete when the call returns, which then returns nothing. Without it all
///                 ranks agree when one has no memory for the result, and there is no second copy
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
/// Results are bit-for-bit identical for every number of threads. One rank matches `attention_forward` bit for
/// bit, Ulysses matches one rank, a hybrid matches a ring of ranks / U ranks, and an all-gather matches the ring.
template <class Q, HostNumber T = NumberOf<Q>>
AttentionResult<T> forward(const Attention& by, const Q& q, Given<View<const T>> k, Given<View<const T>> v,
                           const Placements& placement, const Scoring& scoring,
                           Given<std::optional<View<const T>>> bias = {},
                           const Given<std::optional<ResultViews<T>>>& to = {}) {
  return detail::attend<T>(by, {q, k, v, bias}, placement, scoring, to);
}

/// The gradients of sum(out * grad_out) over all ranks: dQ of this rank's queries, dK and dV of its keys.
///
/// \param result    what `forward` returned on this rank for the same q, k, v, placement and scoring
/// \param grad_out  dO, like out
/// \returns dQ like q, dK and dV like k and v, each summed over the queries of all ranks; the gradient of the bias, like
///          the bias and summed over what broadcasts; and the gradient of the sinks, on every rank the sum over all ranks.
///          The caller owns them. With `to` only the last one.
/// \param grad_lse  the gradient of a loss that reads lse; std::nullopt on all ranks: 0
///
/// For the other arguments, the errors, the ownership of arrays and the memory see `forward`.
/// Messages: each rank sends at most N - 1 with K,V, and N with dK,dV (none of either when N = 1). Where U ranks share heads:
/// all-to-alls for each of q, k, v, bias, out, lse, dO, dQ, dK, dV and the gradient of the bias.
/// The same partitions match bit for bit as in `forward`, with these exceptions: the gradient of a KV head that several
/// ranks have is the sum of their gradients in the order of the ranks, and so is the gradient of a bias that broadcasts over
/// heads. The gradients of sinks are sums over the ranks in their order.
template <class Q, HostNumber T = NumberOf<Q>>
Gradients<T> backward(const Attention& by, const Q& q, Given<View<const T>> k, Given<View<const T>> v,
                      const Given<ResultViews<const T>>& result, Given<View<const T>> grad_out,
                      const Placements& placement, const Scoring& scoring,
                      Given<std::optional<View<const T>>> bias = {},
                      const Given<std::optional<View<const T>>>& grad_lse = {},
                      const Given<std::optional<GradientViews<T>>>& to = {}) {
  return detail::differentiate<T>(by, {q, k, v, bias}, result, grad_out, placement, scoring, grad_lse, to);
}

/// @}

}  // namespace ring_attention
