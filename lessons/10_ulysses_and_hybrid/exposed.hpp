// Lesson 10, beside the idea: how much of the messages is exposed, on a simulated link and between ranks.
#pragma once

#include <thread>

#include "cli/median.hpp"
#include "common/problem.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "volumes.hpp"

namespace ring_attention::lesson_10 {

/// A forward: U ranks share heads, and the others are rings; or an all-gather.
struct Sharing {
  int ulysses;  // 0: all-gather
  [[nodiscard]] RankGrid grid(int rank, int ranks) const { return {rank, ranks, std::max(ulysses, 1)}; }
  [[nodiscard]] Division division() const { return ulysses == 0 ? all_gather() : hybrid(ulysses); }
  [[nodiscard]] std::string name(int ranks) const {
    if (ulysses == 0) return "all-gather";
    if (ulysses == 1) return "ring";
    return ulysses == ranks ? "Ulysses" : format("hybrid, U = %d", ulysses);
  }
};

/// Seconds of one forward.
struct WayTiming {
  double exposed = 0, total = 0;
};

/// The forward of a rank by the library. All arrays are zeros: they take as long as others.
inline double exposed_seconds(const Sharing& way, const RankGrid& grid, PlacementKind kind, const Shape& q,
                              const Shape& kv, const Scoring& scoring, const Device<float>& device,
                              Links& links) {
  const Placement shards(kind, q.seq, grid.ring.size);
  ContextParallel<float> attention(device, links, {grid, way.division(), shards, q, kv, scoring});
  const Index tokens = count(grid.slice(shards));
  const Tensor<float> own_q(q.with_seq(tokens)), own_kv(kv.with_seq(tokens));
  (void)attention.forward(own_q, own_kv, own_kv);
  return attention.hops().exposed_seconds + exchanged(links).exposed_seconds;
}

// ---- a simulated link, and compute that only takes time ---------------------------------------------------

class SleepingEngine : public Engine<float> {
 public:
  SleepingEngine(const Shape& q, double seconds_a_pair) : q_(q), seconds_a_pair_(seconds_a_pair) {}

  void accumulate(const KeyValue<float>& kv, const Progress&) override {
    const auto pairs = static_cast<double>(q_.heads * q_.seq * kv.k.shape().seq);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_a_pair_ * pairs));
  }
  [[nodiscard]] AttentionResult<float> finish() override {
    return {Tensor<float>(q_), Tensor<float>(q_.per_row())};
  }

 private:
  Shape q_;
  double seconds_a_pair_;  // and head
};
class SleepingDevice : public CpuDevice<float> {
 public:
  explicit SleepingDevice(double seconds_a_pair) : seconds_a_pair_(seconds_a_pair) {}

  [[nodiscard]] std::unique_ptr<Engine<float>> forward(const Scoring&, View<const float> q,
                                                       const TokenRanges&, View<const float>,
                                                       const ExpectedKeys&) const override {
    return std::make_unique<SleepingEngine>(q.shape(), seconds_a_pair_);
  }

 private:
  double seconds_a_pair_;
};

inline constexpr int link_ranks = 8, link_repetitions = 2;
inline constexpr Index link_tokens = 16, link_dim = 16;
/// Of B c D elements: a hop of 32 full heads takes 8 ms, much longer than a sleep is late.
inline constexpr double unit_seconds = 125e-6;

/// Threads of this process. The fastest repetition, mean of the ranks.
inline WayTiming simulated(const Sharing& way, const LayerHeads& heads, double step_seconds) {
  constexpr Index tokens = link_ranks * link_tokens;
  const Shape q{1, heads.query, tokens, link_dim}, kv{1, heads.kv, tokens, link_dim};
  const double bytes = link_tokens * link_dim * sizeof(float);
  const double pairs = static_cast<double>(heads.query * link_tokens * link_tokens);
  const SleepingDevice device(step_seconds / pairs);
  WayTiming fastest{0, std::numeric_limits<double>::infinity()};
  for (int i = 0; i < link_repetitions; ++i) {
    LoopbackWorld world(link_ranks, {.bytes_per_second = bytes / unit_seconds});
    std::array<double, link_ranks> exposed{}, total{};
    world.run([&](int rank) {
      const auto begin = std::chrono::steady_clock::now();
      const auto own = static_cast<std::size_t>(rank);
      const RankGrid grid = way.grid(rank, link_ranks);
      PeerLinks links(world.peers(rank), grid.ulysses, grid.ring);
      exposed[own] = exposed_seconds(way, grid, PlacementKind::contiguous, q, kv, {}, device, links);
      total[own] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
    const auto mean = [](const auto& seconds) {
      return std::accumulate(seconds.begin(), seconds.end(), 0.0) / link_ranks;
    };
    if (mean(total) < fastest.total) fastest = {mean(exposed), mean(total)};
  }
  return fastest;
}

/// The all-to-all is exposed in full, a hop where it takes longer than its step.
inline double model(const Sharing& way, const LayerHeads& heads, double step_seconds) {
  if (way.ulysses == 0) return unit_seconds * static_cast<double>(2 * heads.kv * (link_ranks - 1));
  const Volume volume = forward_formula(heads, link_ranks, way.ulysses);
  const int hops = link_ranks / way.ulysses - 1;
  const double step = step_seconds * way.ulysses;
  return unit_seconds * static_cast<double>(volume.all_to_all) +
         std::max(unit_seconds * static_cast<double>(volume.ring) - hops * step, 0.0);
}

/// Rank 0 alone; the others sleep.
inline void show_simulated_link(Lesson& lesson, const Communicator& comm) {
  if (comm.rank() == 0) {
    Table table({"heads", "hop of the ring", "its step", "", "exposed", "model", "whole forward"});
    using Case = std::pair<LayerHeads, double>;
    for (const auto& [heads, step] : {Case{{32, 32}, 4e-3}, Case{{32, 32}, 16e-3}, Case{{32, 8}, 4e-3}}) {
      const double hop = unit_seconds * 2 * static_cast<double>(heads.kv);
      bool first = true;
      for (const Sharing way : {Sharing{1}, Sharing{4}, Sharing{8}, Sharing{0}}) {
        const WayTiming timing = simulated(way, heads, step);
        table.row({first ? format("%d of %d", static_cast<int>(heads.query), static_cast<int>(heads.kv)) : "",
                   first ? human_seconds(hop) : "", first ? human_seconds(step) : "", way.name(link_ranks),
                   human_seconds(timing.exposed), human_seconds(model(way, heads, step)),
                   human_seconds(timing.total)});
        first = false;
      }
    }
    lesson.print("link", table);
    lesson.say(
        format("  %d ranks as threads, compute that sleeps; the fastest of %d runs, mean of the ranks.",
               link_ranks, link_repetitions));
  }
  wait_asleep(comm);
}

// ---- between the ranks of this job ------------------------------------------------------------------------

inline WayTiming measured(const Sharing& way, const RandomProblem& problem, const Communicator& comm) {
  const RankGrid grid = way.grid(comm.rank(), comm.size());
  MpiLinks links(comm, grid.ulysses, grid.ring);
  const CpuDevice<float> device;
  barrier(comm);
  const double begin = MPI_Wtime();
  const double exposed = exposed_seconds(way, grid, PlacementKind::zigzag, problem.q, problem.kv,
                                         problem.scoring, device, links);
  return {max_over_ranks(comm, exposed), max_over_ranks(comm, MPI_Wtime() - begin)};
}

/// Medians of runs in turn, of the slowest rank.
inline void show_this_job(Lesson& lesson, const Communicator& comm, const RandomProblem& problem,
                          const std::vector<int>& ulysses) {
  constexpr int repetitions = 5;
  std::vector<Sharing> ways;
  for (const int ranks : ulysses) ways.push_back({ranks});
  ways.push_back({0});
  std::vector<std::vector<double>> exposed(ways.size()), total(ways.size());
  for (int i = 0; i < repetitions; ++i)
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const WayTiming timing = measured(ways[way], problem, comm);
      exposed[way].push_back(timing.exposed);
      total[way].push_back(timing.total);
    }
  Table table({"this job", "exposed", "whole forward"});
  for (std::size_t way = 0; way < ways.size(); ++way)
    table.row({ways[way].name(comm.size()), human_seconds(median(exposed[way])),
               human_seconds(median(total[way]))});
  lesson.print("job", table);
  lesson.say(format("  Medians of %d runs in turn, slowest rank.", repetitions));
  lesson.say_if_cores_are_shared("waiting for a core counts as exposed, too.");
}

}  // namespace ring_attention::lesson_10
