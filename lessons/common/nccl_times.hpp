// What lessons 06 and 08 measure between GPUs: one ring at several lengths, in fp32 and bf16, contiguous and zigzag;
// the rates F and beta, the length c* from which a hop can hide, and a sample of the results against the reference.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cli/median.hpp"
#include "common/nccl.hpp"
#include "plan/ring_time.hpp"

namespace ring_attention::gpu {

// A kind of ring, for the condition b c D 2 Hkv / beta <= f c^2 D Hq / F.
struct RingKind {
  double flops;                   // f: of a pair of a query and a key, a head and a dim
  double bytes_besides_elements;  // that travel with each element of K and of V: b is e and these

  [[nodiscard]] double smallest_shard(const RandomProblem& problem, double element,
                                      const Rates& rates) const {
    const double group = static_cast<double>(problem.q.heads) / static_cast<double>(problem.kv.heads);
    return 2 * (element + bytes_besides_elements) * rates.flops_per_second /
           (flops * group * rates.bytes_per_second);
  }
};

// Ranks that share a GPU, and the emulator, get small problems.
struct Sizes {
  Sizes(const Gpus& gpus, const Flags& flags)
      : problem(gpus.shared ? flags.problem : ProblemFlags{.seq = 0, .heads = 32, .kv_heads = 8, .dim = 128}),
        tokens(gpus.shared ? 8 : 8192),
        repetitions(gpus.shared ? 0 : 5) {
    for (Index i = 0; i < flags.lengths; ++i) ratios.push_back(std::exp2(i - flags.lengths / 2));
  }

  ProblemFlags problem;
  Index tokens;  // of a rank, where the rates are measured; where ranks share a GPU also in place of c*
  std::vector<double> ratios;  // c / c*
  int repetitions;             // after the first, which warms up; none: the first counts

  [[nodiscard]] RandomProblem of(Index shard, int ranks) const {
    return {{1, problem.heads, shard * ranks, problem.dim},
            {1, problem.kv_heads, shard * ranks, problem.dim},
            {default_scale(problem.dim), Mask::causal()}};
  }
};

// Compute nothing: a ring with them only sends.
template <class T>
class NoEngine : public Engine<T> {
 public:
  void accumulate(const KeyValue<T>&, const Progress&) override {}
  [[nodiscard]] AttentionResult<float> finish() override { return {}; }
};
template <class T>
class NoBackward : public BackwardEngine<T> {
 public:
  void accumulate(const KeyValue<T>&, const KeyValueGradient<float>&, const Progress&) override {}
  [[nodiscard]] Tensor<float> finish() override { return {}; }
};

// Seconds of the slowest rank, medians.
struct Times {
  double compute = 0, messages = 0, blocking = 0, overlapped = 0;
};

inline double seconds_of(const Communicator& comm, const Gpus& gpus, const std::function<void()>& work) {
  gpus.compute.synchronize();
  barrier(comm);
  const double begin = MPI_Wtime();
  work();
  gpus.compute.synchronize();
  return max_over_ranks(comm, MPI_Wtime() - begin);
}

// Each of the four in turn. On one stream, a hop is before the step's compute: nothing overlaps.
// \param run  has compute(), messages() and ring(transfer), with the stream of the transfers
Times measure(auto& run, const Communicator& comm, const Gpus& gpus, int repetitions) {
  std::array<std::vector<double>, 4> seconds;
  const std::array<std::function<void()>, 4> work{[&] { run.compute(); }, [&] { run.messages(); },
                                                  [&] { run.ring(gpus.compute); },
                                                  [&] { run.ring(gpus.transfer); }};
  for (int i = 0; i <= repetitions; ++i)
    for (std::size_t k = 0; k < work.size(); ++k) {
      const double spent = seconds_of(comm, gpus, work[k]);
      if (i > 0 || repetitions == 0) seconds[k].push_back(spent);
    }
  return {median(seconds[0]), median(seconds[1]), median(seconds[2]), median(seconds[3])};
}

inline double flops_of_busiest(const RandomProblem& problem, const RingKind& kind,
                               const Placement& placement) {
  return kind.flops / 4 * busiest(forward_flops(problem.q, problem.scoring.mask, placement, placement));
}

inline void add_row(Table& table, const char* type, PlacementKind kind, Index c, double ratio,
                    const Times& times) {
  const double exposed = std::max(times.overlapped - times.compute, 0.0);
  table.row({type, name(kind), std::to_string(c), format("%.2g", ratio), human_seconds(times.compute),
             human_seconds(times.messages), human_seconds(times.blocking), human_seconds(times.overlapped),
             format("%.1f %%", 100 * exposed / times.overlapped)});
}

// True if every GPU has the memory for a run of this size, and it takes less than 3 s.
inline bool fits(const RandomProblem& problem, Index tokens, const RingKind& kind, const Placement& placement,
                 const Rates& rates, const Communicator& comm) {
  const Index bytes = 4 * (8 * problem.q.with_seq(tokens).size() + 12 * problem.kv.with_seq(tokens).size());
  const double seconds = flops_of_busiest(problem, kind, placement) / rates.flops_per_second;
  return all_of_ranks(comm, bytes < cuda::free_bytes() && seconds < 3);
}

// \param make  make(problem, placement, T{}) returns a run, as in measure(), with check(lesson) for a sample
template <class T>
void time_in(Lesson& lesson, const RingKind& kind, const Sizes& sizes, const Gpus& gpus,
             const Communicator& comm, const auto& make, Table& table) {
  const char* type = cuda::name_of(cuda::type_of<T>);
  const auto placed = [&](PlacementKind placement, Index c) {
    return Placement(placement, c * comm.size(), comm.size());
  };
  const RandomProblem first = sizes.of(sizes.tokens, comm.size());
  const Placement contiguous = placed(PlacementKind::contiguous, sizes.tokens);
  Rates rates;
  {
    auto run = make(first, contiguous, T{});
    const Times times = measure(run, comm, gpus, sizes.repetitions);
    const Index hop = 2 * first.kv.with_seq(sizes.tokens).size();
    rates = {flops_of_busiest(first, kind, contiguous) / times.compute,
             static_cast<double>(hop * (comm.size() - 1)) * (sizeof(T) + kind.bytes_besides_elements) /
                 times.messages};
  }
  const double smallest = kind.smallest_shard(first, sizeof(T), rates);
  lesson.say(format("  %s: F = %.3g FLOP/s a rank, beta = %.3g bytes/s, c* = %.3g tokens a rank", type,
                    rates.flops_per_second, rates.bytes_per_second, smallest));

  const double unit = gpus.shared ? static_cast<double>(sizes.tokens) : smallest;
  for (const PlacementKind placement : {PlacementKind::contiguous, PlacementKind::zigzag}) {
    Index longest = 0;
    for (const double ratio : sizes.ratios) {
      const auto c = std::max<Index>(2, 2 * std::llround(ratio * unit / 2));
      const RandomProblem problem = sizes.of(c, comm.size());
      if (!gpus.shared && !fits(problem, c, kind, placed(placement, c), rates, comm)) {
        lesson.say(format("  %s, %s, c = %lld: left out, too long for these GPUs", type,
                          name(placement).c_str(), static_cast<long long>(c)));
        continue;
      }
      auto run = make(problem, placed(placement, c), T{});
      add_row(table, type, placement, c, static_cast<double>(c) / smallest,
              measure(run, comm, gpus, sizes.repetitions));
      longest = c;
    }
    if (longest > 0)
      make(sizes.of(longest, comm.size()), placed(placement, longest), T{})
          .check(lesson, std::string(type) + ", " + name(placement) + ", c = " + std::to_string(longest));
  }
}

// The whole table.
inline void show_times(Lesson& lesson, const RingKind& kind, const Flags& flags, const Gpus& gpus,
                       const Communicator& comm, const auto& make) {
  if (comm.size() == 1) {
    lesson.say("  One rank: no hop, nothing to hide.");
  } else if (flags.lengths == 0) {
    lesson.say("  No length is timed.");
  } else {
    const Sizes sizes(gpus, flags);
    lesson.say(format("  Causal, %lld query heads, %lld KV heads, D = %lld; medians, slowest rank.",
                      static_cast<long long>(sizes.problem.heads),
                      static_cast<long long>(sizes.problem.kv_heads),
                      static_cast<long long>(sizes.problem.dim)));
    Table table(
        {"type", "placement", "c", "c / c*", "compute", "messages", "blocking", "overlapped", "exposed"});
    time_in<float>(lesson, kind, sizes, gpus, comm, make, table);
    time_in<Bf16>(lesson, kind, sizes, gpus, comm, make, table);
    lesson.print("times", table);
    lesson.say("  Zigzag computes half the pairs of a step: its hops hide from 2 c* on.");
  }
}

// A few of a rank's queries, of the query heads that share one KV head, against the reference: what `run --check`
// compares of a long sequence. Numbers are rounded to T.
template <class T>
class Sample {
 public:
  Sample(const RandomProblem& problem, const TokenRanges& ranges, int rank)
      : problem_(problem),
        group_(problem.q.heads / problem.kv.heads),
        kv_head_(std::min<Index>(rank, problem.kv.heads - 1)) {
    const std::vector<Index> all = positions(ranges);
    for (Index i = 0; i < 4; ++i) {
      rows_.push_back(i * (std::ssize(all) - 1) / 3);
      where_.push_back({all[static_cast<std::size_t>(rows_.back())], 1, 1});
    }
    k_ = head(problem.kv, 1, kv_head_, whole(problem.kv.seq));
    v_ = head(problem.kv, 2, kv_head_, whole(problem.kv.seq));
    q_ = of_group(0);
  }

  // These rows of an array of the whole rank in device memory.
  [[nodiscard]] Tensor<float> rows_of(View<const float> there, cuda::StreamHandle stream) const {
    Tensor<float> here({1, group_, std::ssize(rows_), there.shape().dim});
    for (Index h = 0; h < group_; ++h)
      for (std::size_t i = 0; i < rows_.size(); ++i)
        cuda::copy<float>(here.view().row(0, h, static_cast<Index>(i)),
                          there.row(0, kv_head_ * group_ + h, rows_[i]), stream);
    cuda::check(cudaStreamSynchronize(stream));
    return here;
  }

  [[nodiscard]] Reference forward() const { return reference_forward(q_, k_, v_, problem_.scoring, where_); }
  [[nodiscard]] ReferenceGradients backward() const {
    return reference_backward(q_, k_, v_, of_group(3), problem_.scoring, where_);
  }

 private:
  [[nodiscard]] Tensor<double> of_group(std::uint64_t stream) const {
    Tensor<double> rows({1, group_, std::ssize(rows_), problem_.q.dim});
    for (Index h = 0; h < group_; ++h)
      std::ranges::copy(head(problem_.q, stream, kv_head_ * group_ + h, where_).view().elements(),
                        rows.view().head(0, h));
    return rows;
  }
  [[nodiscard]] Tensor<double> head(const Shape& all, std::uint64_t stream, Index which,
                                    const TokenRanges& at) const {
    const std::vector<Index> from = positions(at);
    Tensor<double> one({1, 1, std::ssize(from), all.dim});
    for (std::size_t i = 0; i < from.size(); ++i)
      for (Index d = 0; d < all.dim; ++d) {
        const auto x = static_cast<float>(random_element(problem_.fill(stream), all, 0, which, from[i], d));
        one.view()(0, 0, static_cast<Index>(i), d) = static_cast<double>(static_cast<float>(T(x)));
      }
    return one;
  }

  RandomProblem problem_;
  Index group_, kv_head_;
  std::vector<Index> rows_;
  TokenRanges where_;
  Tensor<double> q_, k_, v_;
};

// The reference for these queries, from numbers rounded to T.
template <class T>
Reference reference_in(const RandomProblem& problem, const TokenRanges& ranges, const cuda::Stream& stream) {
  const auto rounded = [&](const Tensor<float>& array) {
    return converted<double>(cuda::downloaded(cuda::uploaded<T>(array, stream.handle()), stream.handle()));
  };
  return reference_forward(rounded(problem.queries<float>(ranges)), rounded(problem.keys<float>()),
                           rounded(problem.values<float>()), problem.scoring, ranges);
}

// What a result in T may be off: sums in fp32, and p rounded to T.
template <class T>
Tolerance tolerance_in(const RandomProblem& problem, const Reference& want) {
  Tolerance tolerance = problem.tolerance<float>(want);
  tolerance.absolute += 0.75 * cuda::unit_roundoff(cuda::type_of<T>) * want.max_abs_value;
  return tolerance;
}

}  // namespace ring_attention::gpu
