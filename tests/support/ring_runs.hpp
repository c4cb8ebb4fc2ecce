// Whole rings, in one process or over MPI, and the checks of their results.
#pragma once

#include <string_view>
#include <vector>

#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/engines.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {

/// Elements of the one tile that the fast engine keeps.
template <class T>
Index tile_elements(cpu::Size (*elements)(int), Index dim) {
  return cpu::workspaces<T>(1, elements(static_cast<int>(dim))).size();
}
/// The same of the forward on some queries.
template <class T>
Index forward_tile_elements(const Shape& q) {
  const auto& kernel = forward_kernel(kernels<T>(best_isa()).forward, static_cast<cpu::Size>(q.seq));
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
TokenRanges query_ranges(const Problem<T>& problem, int rank, int ranks);

/// How many hops the K,V of each rank make.
std::vector<int> hops_of(const Case& what, int ranks);

/// Makes the transport of a rank for a channel.
using MakeTransport = std::function<std::unique_ptr<Transport>(int channel)>;

/// One rank's part: its tokens of the problem's arrays, its engine, the ring loop.
/// \param make_transport  called last, because a transport borrows the parcel
template <class T>
RankResult<T> run_rank(const Problem<T>& problem, const Ring& place, const MakeTransport& make_transport,
                       const MakeForward<T>& make_engine = fast_engines<T>.forward);

/// Makes the transport of a rank in a world of threads.
using MakeLoopback = std::unique_ptr<Transport> (*)(LoopbackWorld& world, int rank, int channel);
template <class Link>
std::unique_ptr<Transport> loopback_link(LoopbackWorld& world, int rank, int channel) {
  return std::make_unique<Link>(world, rank, channel);
}

/// All ranks of a ring in this process.
template <class T>
std::vector<RankResult<T>> run_loopback_with(const Problem<T>& problem, int ranks,
                                             MakeLoopback make_transport, const MakeForward<T>& make_engine);
template <class T, class Engine = CpuEngine<T>, class Link = LoopbackTransport>
std::vector<RankResult<T>> run_loopback(const Problem<T>& problem, int ranks) {
  return run_loopback_with<T>(problem, ranks, loopback_link<Link>, make_forward<T, Engine>);
}

/// Does every rank agree with its rows of the reference?
template <class T>
testing::AssertionResult all_agree(const std::vector<RankResult<T>>& results, const Problem<T>& problem);

/// A number that the bits of these arrays decide: for ranks that compare their results.
template <class... Arrays>
std::size_t hash_of(const Arrays&... arrays) {
  std::size_t hash = 0;
  const auto add = [&](const auto& array) {
    const std::string_view bytes(reinterpret_cast<const char*>(array.data()), array.bytes());
    hash = 31 * hash + std::hash<std::string_view>{}(bytes);
  };
  (add(arrays), ...);
  return hash;
}

/// The check that the right ring passes and each mutant must fail.
template <class T, class Engine = CpuEngine<T>, class Link = LoopbackTransport>
testing::AssertionResult ring_agrees(const Problem<T>& problem, int ranks) {
  return all_agree(run_loopback<T, Engine, Link>(problem, ranks), problem);
}

/// What a rank must send and receive: at each of N - 1 hops the parcel that is on this rank and goes on, if it has any
/// tokens.
template <class T>
testing::AssertionResult sent_what_it_should(const TransportStatistics& statistics, const Problem<T>& problem,
                                             const Ring& ring);

}  // namespace ring_attention::test
