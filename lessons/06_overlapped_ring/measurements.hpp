// What lesson 06 measures on real messages: the rings in turn, their exposed and their total time.
#pragma once

#include <functional>

#include "cli/median.hpp"
#include "common/problem.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention {

inline constexpr int repetitions = 5;

/// One whole ring on this rank; returns the seconds during which it computed nothing.
using RingLoop = std::function<double(Engine<float>&, RingBuffers&)>;

/// The common mistake: an engine that calls no MPI between tiles.
class SilentEngine : public Engine<float> {
 public:
  explicit SilentEngine(Engine<float>& engine) : engine_(engine) {}

  void accumulate(const KeyValue<float>& kv, const Progress& /*progress*/) override {
    engine_.accumulate(kv);
  }
  [[nodiscard]] AttentionResult<float> finish() override { return engine_.finish(); }

 private:
  Engine<float>& engine_;
};

struct RingTiming {
  double exposed = 0, total = 0;  // seconds of the slowest rank
  [[nodiscard]] double share() const { return exposed / total; }
};

struct TimedRing {
  AttentionResult<float> result;
  RingTiming timing;
};

/// Runs `loop` once on this rank's part of the problem.
inline TimedRing run_ring(const RandomProblem& problem, const Communicator& comm, const RingLoop& loop) {
  const Placement placement(PlacementKind::contiguous, problem.kv.seq, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());
  const auto q = problem.queries<float>(ranges);
  RingBuffers kv(problem, placement, comm.rank());
  CpuEngine<float> engine(problem.scoring);
  engine.begin(q, ranges);
  barrier(comm);
  const double begin = MPI_Wtime();
  const double exposed = loop(engine, kv);
  const double total = MPI_Wtime() - begin;
  return {engine.finish(), {max_over_ranks(comm, exposed), max_over_ranks(comm, total)}};
}

/// Medians. The rings take turns, so that other load on the machine affects all of them.
inline std::vector<RingTiming> time_in_turn(const RandomProblem& problem, const Communicator& comm,
                                            const std::vector<RingLoop>& loops) {
  std::vector<std::vector<double>> exposed(loops.size()), total(loops.size());
  for (int i = 0; i < repetitions; ++i)
    for (std::size_t ring = 0; ring < loops.size(); ++ring) {
      const RingTiming timing = run_ring(problem, comm, loops[ring]).timing;
      exposed[ring].push_back(timing.exposed);
      total[ring].push_back(timing.total);
    }
  std::vector<RingTiming> medians;
  for (std::size_t ring = 0; ring < loops.size(); ++ring)
    medians.push_back({median(exposed[ring]), median(total[ring])});
  return medians;
}

inline void show_times(Lesson& lesson, const std::vector<RingTiming>& timings) {
  Table table({"ring", "exposed", "total", "exposed / total"});
  constexpr std::array names{"blocking (lesson 05)", "overlapped, no MPI call between tiles", "overlapped"};
  for (std::size_t i = 0; i < names.size(); ++i)
    table.row({names.at(i), human_seconds(timings[i].exposed), human_seconds(timings[i].total),
               format("%.1f %%", 100 * timings[i].share())});
  lesson.print("times", table);
  lesson.say(format("  Medians of %d runs in turn, slowest rank.", repetitions));
  lesson.say_if_cores_are_shared("waiting for a core counts as exposed, too.");
}

}  // namespace ring_attention
