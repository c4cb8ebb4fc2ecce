// Whole rings, in one process or over MPI, and the checks of their results.
#pragma once

#include <functional>
#include <vector>

#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
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

/// One rank's part: its tokens of the problem's arrays, its engine, the ring loop.
/// \param make_transport  makes this rank's transport; called last, because a transport borrows the parcel
template <class T, class Rules = StandardRules, class Engine = EngineOf<T, Rules>, class MakeTransport>
RankResult<T> run_rank(const Problem<T>& problem, const Ring& place, MakeTransport make_transport) {
  const Index before = allocation::current();
  allocation::reset_peak();
  const TokenRanges rows = query_ranges(problem, place.rank, place.size);
  Tensor<T> q(problem.q.shape().with_seq(count(rows)));
  copy_rows(q.view(), problem.q.view(), rows);
  const Placement keys(problem.what.kind, problem.what.keys, place.size);
  KvParcel<T> kv(problem.k.shape(), keys, place.rank);
  copy_rows(kv.k(), problem.k.view(), keys.ranges(place.rank));
  copy_rows(kv.v(), problem.v.view(), keys.ranges(place.rank));

  auto engine = make_engine<Engine>(problem.what.scoring, problem.what.block);
  const Tensor<T> bias = problem.bias.size() > 0 ? rows_of(problem.bias, rows) : Tensor<T>();
  if constexpr (requires { engine.begin(q, rows, bias); })
    engine.begin(q, rows, bias);
  else
    engine.begin(q, rows);
  auto&& transport = make_transport();
  ring_forward(engine, transport, kv);
  AttentionResult<T> attended = engine.finish();
  return {std::move(attended), transport.statistics(), allocation::peak() - before};
}

/// All ranks of a ring in this process.
template <class T, class Rules = StandardRules, class Link = LoopbackTransport,
          class Engine = EngineOf<T, Rules>>
std::vector<RankResult<T>> run_loopback(const Problem<T>& problem, int ranks) {
  std::vector<RankResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    results[static_cast<std::size_t>(rank)] =
        run_rank<T, Rules, Engine>(problem, {rank, ranks}, [&] { return Link(world, rank); });
  });
  return results;
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

/// What rank `rank` must send: N-1 messages, every parcel except the one of its next neighbour.
template <class T>
testing::AssertionResult sent_what_it_should(const TransportStatistics& statistics, const Problem<T>& problem,
                                             const Ring& ring) {
  const Placement keys(problem.what.kind, problem.what.keys, ring.size);
  const Shape kv = problem.what.kv();
  const auto parcel = [&](int owner) {
    return 2 * kv.batch * kv.heads * keys.tokens(owner) * kv.dim * static_cast<Index>(sizeof(T));
  };
  const Index all = 2 * kv.size() * static_cast<Index>(sizeof(T));
  if (statistics.messages_sent != ring.size - 1)
    return testing::AssertionFailure() << "rank " << ring.rank << " of " << ring.size << " sent "
                                       << statistics.messages_sent << " messages";
  if (statistics.bytes_sent != all - parcel(ring.next()))
    return testing::AssertionFailure()
           << "rank " << ring.rank << " of " << ring.size << " sent " << statistics.bytes_sent << " bytes";
  if (statistics.bytes_received != all - parcel(ring.rank))
    return testing::AssertionFailure() << "rank " << ring.rank << " of " << ring.size << " received "
                                       << statistics.bytes_received << " bytes";
  return testing::AssertionSuccess();
}

}  // namespace ring_attention::test
