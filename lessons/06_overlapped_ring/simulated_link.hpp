// What lesson 06 measures of links: F and beta of this machine, the condition for hiding a hop, and a simulated link
// whose transfers take time but no CPU cycles.
#pragma once

#include <algorithm>
#include <limits>

#include "measurements.hpp"
#include "plan/ring_time.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention {

/// FLOP of one step: two products of c x c x D a query head.
inline double step_flops(const RandomProblem& problem, Index tokens) {
  const auto c = static_cast<double>(tokens);
  return 4 * c * c * static_cast<double>(problem.q.batch * problem.q.heads * problem.q.dim);
}

/// Needs two ranks. F is the median; beta is that of the fastest hop, because a slower one waited for a core.
inline Rates measure_rates(const RandomProblem& problem, const Communicator& comm) {
  const Placement placement(PlacementKind::contiguous, problem.kv.seq, comm.size());
  const Ring ring{comm.rank(), comm.size()};
  const TokenRanges ranges = placement.ranges(comm.rank());
  const auto q = problem.queries<float>(ranges);
  KvParcel<float> kv = problem.parcel<float>(placement, comm.rank());
  CpuEngine<float> engine(problem.scoring);
  OverlappedTransport transport(comm);
  std::vector<double> compute, hop;
  for (int i = 0; i < repetitions; ++i) {
    engine.begin(q, ranges);
    barrier(comm);
    const double begin = MPI_Wtime();
    engine.accumulate(kv.current());
    compute.push_back(max_over_ranks(comm, MPI_Wtime() - begin));

    barrier(comm);
    const double start = MPI_Wtime();
    transport.start(kv.exchange(ring.owner(1)));
    transport.finish();
    hop.push_back(max_over_ranks(comm, MPI_Wtime() - start));
  }
  const Index tokens = placement.max_tokens();
  return {step_flops(problem, tokens) / median(compute),
          static_cast<double>(parcel_bytes(problem, tokens)) / std::ranges::min(hop)};
}

// c* = e F / (2 g beta): from here on a shard computes longer than it travels (Liu et al., section 3.2).
inline double smallest_shard(const RandomProblem& problem, const Rates& rates) {
  const double group = static_cast<double>(problem.q.heads) / static_cast<double>(problem.kv.heads);
  return sizeof(float) * rates.flops_per_second / (2 * group * rates.bytes_per_second);
}

inline void show_condition(Lesson& lesson, const Communicator& comm, const RandomProblem& problem) {
  if (comm.size() == 1) return lesson.say("  One rank: no hop, nothing to hide.");
  const Rates rates = measure_rates(problem, comm);
  const Index shard = Placement(PlacementKind::contiguous, problem.kv.seq, comm.size()).max_tokens();
  const double smallest = smallest_shard(problem, rates);
  Table table({"F, FLOP/s a rank", "beta, bytes/s", "c* = e F / (2 g beta)", "c of a shard", ""});
  table.row({format("%.3g", rates.flops_per_second), format("%.3g", rates.bytes_per_second),
             format("%.3g", smallest), std::to_string(shard),
             static_cast<double>(shard) >= smallest ? "a hop can hide behind a step"
                                                    : "a hop is too long to hide"});
  lesson.print("condition", table);
  lesson.say_if_cores_are_shared("F, beta and c* include waiting for a core. Take as many ranks as cores.");
}

// ---- a link that takes no CPU cycles -------------------------------------------------------------------

inline constexpr int link_repetitions = 7;

/// One hop between two steps: what a step computed, and how long the hop kept the rank waiting.
struct LinkStep {
  double compute = 0, exposed = 0;  // seconds, mean of the ranks
  [[nodiscard]] double seconds() const { return compute + exposed; }
  [[nodiscard]] double share() const { return exposed / seconds(); }
};

/// Two ranks of `tokens` tokens each, as threads of this process, over a simulated link: two steps, one hop.
/// The fastest repetition: the others were disturbed.
/// \param bytes_per_second  of the link; 0: it takes no time
inline LinkStep simulated_step(RandomProblem problem, Index tokens, double bytes_per_second) {
  constexpr int ranks = 2;
  problem.q.seq = problem.kv.seq = ranks * tokens;
  const Placement placement(PlacementKind::contiguous, problem.kv.seq, ranks);
  LinkStep fastest{std::numeric_limits<double>::infinity(), 0};
  for (int i = 0; i < link_repetitions; ++i) {
    LoopbackWorld world(ranks, {.bytes_per_second = bytes_per_second});
    double compute[ranks], exposed[ranks];
    world.run([&](int rank) {
      const Tensor<float> q(problem.q.with_seq(tokens));  // zeros take as long to compute as other numbers
      KvParcel<float> kv(problem.kv, placement, rank);
      LoopbackTransport transport(world, rank);
      CpuEngine<float> engine(problem.scoring);
      engine.begin(q, placement.ranges(rank));
      const double begin = MPI_Wtime();
      ring_forward(engine, transport, kv);
      exposed[rank] = transport.statistics().exposed_seconds;
      compute[rank] = (MPI_Wtime() - begin - exposed[rank]) / ranks;
    });
    const LinkStep step{(compute[0] + compute[1]) / ranks, (exposed[0] + exposed[1]) / ranks};
    if (step.seconds() < fastest.seconds()) fastest = step;
  }
  return fastest;
}

// Rank 0 alone, two threads, one head. beta is chosen so that c* is 2048 tokens for the F measured over a link that
// takes no time: shards are long, so that a hop takes much longer than a sleep is late, and a copy is little beside a
// step.
inline void show_simulated_link(Lesson& lesson, const Communicator& comm, RandomProblem problem) {
  constexpr Index smallest = 2048;
  problem.q.heads = problem.kv.heads = 1;
  if (comm.rank() == 0) {
    const Index few = smallest / 4;  // a short step is seldom disturbed
    const LinkStep free = simulated_step(problem, few, 0);
    Rates rates{step_flops(problem, few) / free.compute, 1};
    rates.bytes_per_second = smallest_shard(problem, rates) / smallest;  // c* goes as 1 / beta
    lesson.say(format("  F = %.3g FLOP/s a thread; the link gets beta = %.3g bytes/s, so that c* = %d tokens",
                      rates.flops_per_second, rates.bytes_per_second, static_cast<int>(smallest)));
    Table table({"c / c*", "c", "hop", "compute of a step", "exposed", "share of the step", "model"});
    for (const double ratio : {0.25, 0.5, 1.0, 2.0}) {  // c / c*
      const auto tokens = static_cast<Index>(ratio * smallest);
      const LinkStep step = simulated_step(problem, tokens, rates.bytes_per_second);
      const double hop = static_cast<double>(parcel_bytes(problem, tokens)) / rates.bytes_per_second;
      table.row({format("%g", ratio), format("%d", static_cast<int>(tokens)), human_seconds(hop),
                 human_seconds(step.compute), human_seconds(step.exposed),
                 format("%.1f %%", 100 * step.share()), format("%.0f %%", 100 * std::max(1 - ratio, 0.0))});
    }
    lesson.print("link", table);
    lesson.say(format("  The fastest of %d runs, mean of both ranks.", link_repetitions));
  }
  wait_asleep(comm);
}

}  // namespace ring_attention
