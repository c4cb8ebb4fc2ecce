// What lesson 09 runs: the ring on each placement, and its result in natural order.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>

#include "common/problem.hpp"
#include "mistakes/mistaken_ring.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention {

inline constexpr std::array placement_kinds{PlacementKind::contiguous, PlacementKind::striped,
                                            PlacementKind::zigzag};

using Work = std::vector<std::vector<Index>>;  // pairs, [rank][step]

inline Index total(const Work& work) {
  Index pairs = 0;
  for (const auto& rank : work) pairs = std::accumulate(rank.begin(), rank.end(), pairs);
  return pairs;
}

/// At best all ranks share all pairs evenly.
inline double ideal(const Work& work) {
  return static_cast<double>(total(work)) / static_cast<double>(work.size());
}

/// A row a rank; below them the slowest rank of each step, whose sum is the critical path.
inline void print_work(Lesson& lesson, PlacementKind kind, const Work& work) {
  std::vector<std::string> heading{"rank"};
  for (std::size_t step = 0; step < work.size(); ++step) heading.push_back("step " + std::to_string(step));
  heading.emplace_back("sum");
  Table table(heading);
  Work rows = work;
  std::vector<Index>& slowest = rows.emplace_back(work.size());
  for (const auto& rank : work)
    for (std::size_t step = 0; step < work.size(); ++step)
      slowest[step] = std::max(slowest[step], rank[step]);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    std::vector<std::string> cells{rank < work.size() ? std::to_string(rank) : "slowest"};
    for (const Index pairs : rows[rank]) cells.push_back(std::to_string(pairs));
    cells.push_back(std::to_string(std::accumulate(rows[rank].begin(), rows[rank].end(), Index{0})));
    table.row(cells);
  }
  lesson.print("work_" + name(kind), table);
}

/// An engine of a device, for a loop that lets it begin.
struct EngineOf {
  const Device<float>& device;
  const Scoring& scoring;
  std::unique_ptr<Engine<float>> engine = nullptr;

  void begin(View<const float> q, const TokenRanges& ranges) {
    engine = device.forward(scoring, q, ranges, {}, {q.shape()});
  }
  operator Engine<float>&() { return *engine; }
  [[nodiscard]] AttentionResult<float> finish() { return engine->finish(); }
};

/// The rows of all ranks, each at its position, on every rank.
inline Tensor<float> natural_order(const Tensor<float>& rows, const TokenRanges& ranges, Index seq,
                                   const Communicator& comm) {
  Tensor<float> all(rows.shape().with_seq(seq));
  const std::vector<Index> place = positions(ranges);
  for (Index b = 0; b < rows.shape().batch; ++b)
    for (Index h = 0; h < rows.shape().heads; ++h)
      for (std::size_t i = 0; i < place.size(); ++i)
        std::ranges::copy(rows.view().row(b, h, static_cast<Index>(i)),
                          all.view().row(b, h, place[i]).begin());
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, all.data(), static_cast<int>(all.size()), MPI_FLOAT, MPI_SUM,
                          comm.handle()));  // the others have 0 there
  return all;
}

/// Every placement against the dense reference. Each rank compares a contiguous shard, whichever ranks computed it.
inline void check_results(Lesson& lesson, const RandomProblem& problem, const Communicator& comm,
                          const RingMistake& mistake) {
  const Index seq = problem.q.seq;
  const TokenRanges slice = Placement(PlacementKind::contiguous, seq, comm.size()).ranges(comm.rank());
  const Reference want = problem.reference<float>(slice);
  const Tolerance tolerance = problem.tolerance<float>(want);
  const Index kv_bytes = 2 * problem.kv.size() * static_cast<Index>(sizeof(float));
  const CpuDevice<float> cpu;
  for (const PlacementKind kind : placement_kinds) {
    const Placement placement(kind, seq, comm.size());
    const MistakenDevice device(cpu, mistake, {comm.rank(), comm.size()}, placement);
    EngineOf engine{device, problem.scoring};
    const RingRun ran = run_library_ring<OverlappedTransport>(problem, comm, placement, engine);
    const TokenRanges ranges = placement.ranges(comm.rank());
    const auto gathered = [&](const Tensor<float>& rows) {
      return rows_at(natural_order(rows, ranges, seq, comm), slice);
    };
    lesson.check(name(kind) + ": out agrees with the dense reference",
                 compare(gathered(ran.rows.out), want.out, tolerance));
    lesson.check(name(kind) + ": lse agrees with the dense reference",
                 compare(gathered(ran.rows.lse), want.lse, tolerance));
    const std::string folder = lesson.save_folder();
    SavedCases(folder.empty() ? "" : folder + "/" + name(kind), {kind, comm.size(), comm.rank()})
        .add<float>("causal", problem, ranges, {{"out", ran.rows.out}, {"lse", ran.rows.lse}});
    const Index sent = sum_over_ranks(comm, ran.statistics.bytes_sent);
    const Index messages = sum_over_ranks(comm, ran.statistics.messages_sent);
    const Index senders = std::min<Index>(comm.size(), seq);  // a rank without tokens has no parcel
    lesson.check(name(kind) + ": N - 1 hops, and N - 1 times the whole K,V sent, as without a mask",
                 messages == (comm.size() - 1) * senders && sent == (comm.size() - 1) * kv_bytes,
                 human_bytes(sent));
  }
}

}  // namespace ring_attention
