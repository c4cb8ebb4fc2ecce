// Whole rings, in one process or over MPI, and the checks of their results.
#pragma once

#include <functional>
#include <vector>

#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/any_engine.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {

/// The library's engine; with other rules the readable one, which takes them.
template <class T, class Rules>
using EngineOf =
    std::conditional_t<std::is_same_v<Rules, StandardRules>, CpuEngine<T>, BlockwiseEngine<T, Rules>>;

/// Elements of the one tile that the fast engine keeps.
template <class T>
Index tile_elements(cpu::Size (*elements)(int), Index dim) {
  return cpu::workspaces<T>(1, elements(static_cast<int>(dim))).size();
}
/// The same of the forward on some queries.
template <class T>
Index forward_tile_elements(const Shape& q) {
  const auto& kernel = forward_kernel(kernels<T>(best_isa()), static_cast<cpu::Size>(q.seq));
  return tile_elements<T>(kernel.workspace, q.dim);
}

/// The results of a rank.
template <class T>
struct RankResult {
  AttentionResult<T> attended;
  TransportStatistics statistics;
  Index peak_bytes = 0;  // of tensors, with the rank's own q and K,V
};

template <class T>
TokenRanges query_ranges(const Problem<T>& problem, int rank, int ranks) {
  return Placement(problem.what.kind, problem.what.queries, ranks).ranges(rank);
}

/// How many hops the K,V of each rank make.
inline std::vector<int> hops_of(const Case& what, int ranks) {
  if (what.every_hop) return {};
  return kv_hops(what.scoring.mask, {what.kind, what.queries, ranks}, {what.kind, what.keys, ranks});
}

/// One rank's part: its tokens of the problem's arrays, its engine, the ring loop.
/// \param make_transport  makes this rank's transport; called last, because a transport borrows the parcel
template <class T, class MakeTransport>
RankResult<T> run_rank(const Problem<T>& problem, const Ring& place, MakeTransport make_transport,
                       const MakeForward<T>& make_engine) {
  const Index before = allocation::current();
  allocation::reset_peak();
  const TokenRanges rows = query_ranges(problem, place.rank, place.size);
  Tensor<T> q(problem.q.shape().with_seq(count(rows)));
  copy_rows(q.view(), problem.q.view(), rows);
  const Placement keys(problem.what.kind, problem.what.keys, place.size);
  KvParcel<T> kv(problem.k.shape(), keys, place.rank, {}, hops_of(problem.what, place.size));
  copy_rows(kv.k(), problem.k.view(), keys.ranges(place.rank));
  copy_rows(kv.v(), problem.v.view(), keys.ranges(place.rank));

  const auto engine = make_engine();
  const Tensor<T> bias = problem.bias.size() > 0 ? rows_of(problem.bias, rows) : Tensor<T>();
  engine->begin(q, rows, bias);
  auto&& transport = make_transport();
  ring_forward(*engine, transport, kv);
  AttentionResult<T> attended = engine->finish();
  return {std::move(attended), transport.statistics(), allocation::peak() - before};
}
template <class T, class MakeTransport>
RankResult<T> run_rank(const Problem<T>& problem, const Ring& place, MakeTransport make_transport) {
  return run_rank<T>(problem, place, make_transport, forward_engines<T, CpuEngine<T>>(problem.what));
}

/// All ranks of a ring in this process.
template <class T, class Link>
std::vector<RankResult<T>> run_loopback_with(const Problem<T>& problem, int ranks,
                                             const MakeForward<T>& make_engine) {
  std::vector<RankResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    results[static_cast<std::size_t>(rank)] = run_rank(
        problem, {rank, ranks}, [&] { return Link(world, rank); }, make_engine);
  });
  return results;
}
template <class T, class Rules = StandardRules, class Link = LoopbackTransport,
          class Engine = EngineOf<T, Rules>>
std::vector<RankResult<T>> run_loopback(const Problem<T>& problem, int ranks) {
  return run_loopback_with<T, Link>(problem, ranks, forward_engines<T, Engine>(problem.what));
}

/// Does every rank agree with its rows of the reference?
template <class T>
testing::AssertionResult all_agree(const std::vector<RankResult<T>>& results, const Problem<T>& problem) {
  const int ranks = static_cast<int>(results.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const auto verdict =
        agrees(results[static_cast<std::size_t>(rank)].attended, problem, query_ranges(problem, rank, ranks));
    if (!verdict)
      return testing::AssertionFailure() << "rank " << rank << " of " << ranks << ": " << verdict.message();
  }
  return testing::AssertionSuccess() << "all ranks agree with the reference";
}

/// The check that the right ring passes and each mutant must fail.
template <class T, class Rules = StandardRules, class Link = LoopbackTransport,
          class Engine = EngineOf<T, Rules>>
testing::AssertionResult ring_agrees(const Problem<T>& problem, int ranks) {
  return all_agree(run_loopback<T, Rules, Link, Engine>(problem, ranks), problem);
}

/// What a rank must send and receive: at each of N - 1 hops the parcel that is on this rank and goes on, if it has any
/// tokens.
template <class T>
testing::AssertionResult sent_what_it_should(const TransportStatistics& statistics, const Problem<T>& problem,
                                             const Ring& ring) {
  const Placement keys(problem.what.kind, problem.what.keys, ring.size);
  const std::vector<int> hops = hops_of(problem.what, ring.size);
  const auto parcel = [&](int owner, int hop) {
    const bool travels = hops.empty() || hop <= hops[static_cast<std::size_t>(owner)];
    const Shape kv = problem.what.kv().with_seq(keys.tokens(owner));
    return travels ? 2 * kv.size() * static_cast<Index>(sizeof(T)) : 0;
  };
  TransportStatistics due;
  for (int hop = 1; hop < ring.size; ++hop) {
    const Index sent = parcel(ring.owner(hop - 1), hop);
    due.messages_sent += sent > 0 ? 1 : 0;
    due.bytes_sent += sent;
    due.bytes_received += parcel(ring.owner(hop), hop);
  }
  if (statistics.messages_sent == due.messages_sent && statistics.bytes_sent == due.bytes_sent &&
      statistics.bytes_received == due.bytes_received)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << "rank " << ring.rank << " of " << ring.size << " sent "
                                     << statistics.bytes_sent << " bytes in " << statistics.messages_sent
                                     << " messages and received " << statistics.bytes_received
                                     << "; due were " << due.bytes_sent << ", " << due.messages_sent
                                     << " and " << due.bytes_received;
}

}  // namespace ring_attention::test
