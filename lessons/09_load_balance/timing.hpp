// What lesson 09 measures: the pairs in the tiles that an engine computes, and the seconds of every rank and step.
#pragma once

#include <time.h>

#include <limits>

#include "cli/median.hpp"
#include "results.hpp"
#include "ring_attention/core/blocks.hpp"

namespace ring_attention {

inline constexpr int repetitions = 5;

/// The engine takes this many queries of a head at a time, one in each SIMD lane: a panel of its tile. A panel leaves
/// out the keys after the last one that it sees.
inline Index tile_queries() {
  const cpu::BackwardTile tile = kernels<float>(best_isa()).backward.tile(1);
  return tile.queries / tile.panels;
}

/// The pairs that the engine computes: every lane of a tile meets all keys up to the last one that the last query sees.
inline std::vector<std::vector<Index>> tile_pairs(PlacementKind kind, Index seq, int ranks) {
  const Placement placement(kind, seq, ranks);
  std::vector<std::vector<Index>> pairs;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = pairs.emplace_back();
    for (int step = 0; step < ranks; ++step) {
      Index& sum = row.emplace_back(0);
      for_each_block(placement.ranges(rank), tile_queries(), [&](const TokenRange& queries, Index) {
        const Index last = queries.position(queries.count - 1);
        for (const TokenRange& keys : placement.ranges(Ring{rank, ranks}.owner(step)))
          for (Index j = 0; j < keys.count && keys.position(j) <= last; ++j) sum += tile_queries();
      });
    }
  }
  return pairs;
}

/// Seconds that this thread had a core: a rank that waits for one does not count as working.
inline double cpu_seconds() {
  timespec time{};
  require(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0, "clock_gettime");
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Notes what each step computes, without the messages that move between tiles.
struct TimedEngine : CpuEngine<float> {
  using CpuEngine<float>::CpuEngine;
  std::vector<double> seconds;  // per step

  void accumulate(const KeyValue<float>& kv, const Progress& progress) override {
    double elsewhere = 0;
    const double begin = cpu_seconds();
    CpuEngine<float>::accumulate(kv, [&] {
      const double left = cpu_seconds();
      progress();
      elsewhere += cpu_seconds() - left;
    });
    seconds.push_back(cpu_seconds() - begin - elsewhere);
  }
};

struct Timing {
  std::vector<std::vector<double>> cpu;  // [rank][step], seconds that the rank computed
  double wall = 0;                       // seconds of the loop, slowest rank
};

/// One timing a placement: the least of each cell, the median of each wall time. The placements take turns, so that
/// other load on the machine affects all of them.
inline std::vector<Timing> time_placements(const RandomProblem& problem, const Communicator& comm) {
  const auto steps = static_cast<std::size_t>(comm.size());
  std::vector<Timing> timings(
      placement_kinds.size(),
      {std::vector(steps, std::vector(steps, std::numeric_limits<double>::infinity())), 0});
  std::vector<std::vector<double>> wall(placement_kinds.size());
  for (int i = 0; i < repetitions; ++i)
    for (std::size_t l = 0; l < placement_kinds.size(); ++l) {
      TimedEngine engine(problem.scoring);
      wall[l].push_back(run_library_ring<OverlappedTransport>(
                            problem, comm, Placement(placement_kinds[l], problem.kv.seq, comm.size()), engine)
                            .wall);
      for (std::size_t step = 0; step < steps; ++step) {
        const std::vector<double> seconds = all_gather(comm, engine.seconds[step]);
        for (std::size_t rank = 0; rank < steps; ++rank) {
          double& least = timings[l].cpu[rank][step];
          least = std::min(least, seconds[rank]);
        }
      }
    }
  for (std::size_t l = 0; l < placement_kinds.size(); ++l) timings[l].wall = median(wall[l]);
  return timings;
}

}  // namespace ring_attention
