#include "ring_attention/core/allocation.hpp"
#include "support/ring_runs.hpp"

namespace ring_attention::test {

template <class T>
TokenRanges query_ranges(const Problem<T>& problem, int rank, int ranks) {
  return Placement(problem.what.kind, problem.what.queries, ranks).ranges(rank);
}

std::vector<int> hops_of(const Case& what, int ranks) {
  if (what.every_hop) return {};
  return kv_hops(what.scoring.mask, {what.kind, what.queries, ranks}, {what.kind, what.keys, ranks});
}

template <class T>
RankResult<T> run_rank(const Problem<T>& problem, const Ring& place, const MakeTransport& make_transport,
                       const MakeForward<T>& make_engine) {
  const Index before = allocation::current();
  allocation::reset_peak();
  const TokenRanges rows = query_ranges(problem, place.rank, place.size);
  Tensor<T> q(problem.q.shape().with_seq(count(rows)));
  copy_rows(q.view(), problem.q.view(), rows);
  const Placement keys(problem.what.kind, problem.what.keys, place.size);
  KvParcel<T> kv(problem.k.shape(), keys, place.rank, host_memory(), hops_of(problem.what, place.size));
  copy_rows(kv.k(), problem.k.view(), keys.ranges(place.rank));
  copy_rows(kv.v(), problem.v.view(), keys.ranges(place.rank));

  const Tensor<T> bias = problem.bias.size() > 0 ? rows_of(problem.bias, rows) : Tensor<T>();
  const auto engine = make_engine(problem.what.scoring, problem.what.block, q, rows, bias);
  const auto transport = make_transport(0);
  ring_forward(*engine, *transport, kv);
  AttentionResult<T> attended = engine->finish();
  return {std::move(attended), transport->statistics(), allocation::peak() - before};
}

template <class T>
std::vector<RankResult<T>> run_loopback_with(const Problem<T>& problem, int ranks,
                                             MakeLoopback make_transport, const MakeForward<T>& make_engine) {
  std::vector<RankResult<T>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    results[static_cast<std::size_t>(rank)] = run_rank<T>(
        problem, {rank, ranks}, [&](int channel) { return make_transport(world, rank, channel); },
        make_engine);
  });
  return results;
}

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

#define RING_ATTENTION_INSTANTIATE(T)                                                                  \
  template TokenRanges query_ranges(const Problem<T>&, int, int);                                      \
  template RankResult<T> run_rank(const Problem<T>&, const Ring&, const MakeTransport&,                \
                                  const MakeForward<T>&);                                              \
  template std::vector<RankResult<T>> run_loopback_with(const Problem<T>&, int, MakeLoopback,          \
                                                        const MakeForward<T>&);                        \
  template testing::AssertionResult all_agree(const std::vector<RankResult<T>>&, const Problem<T>&);   \
  template testing::AssertionResult sent_what_it_should(const TransportStatistics&, const Problem<T>&, \
                                                        const Ring&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention::test
