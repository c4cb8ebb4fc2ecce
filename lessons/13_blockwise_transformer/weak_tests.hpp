// Lesson 13, beside the idea: every mesh against one process; plausible tests, and the mistakes that pass them.
#pragma once

#include "common/weak_tests.hpp"
#include "mesh_links.hpp"
#include "part.hpp"

namespace ring_attention::lesson_13 {

/// All meshes of so many ranks that can share the heads.
inline std::vector<MeshShape> meshes(const Setup& setup, int ranks) {
  std::vector<MeshShape> all;
  const auto divisors = [](int of) {
    std::vector<int> found;
    for (int d = 1; d <= of; ++d)
      if (of / d * d == of) found.push_back(d);
    return found;
  };
  for (const int tensor : divisors(ranks))
    for (const int ulysses : divisors(ranks / tensor))
      for (const int ring : divisors(ranks / tensor / ulysses)) {
        const MeshShape mesh{tensor, ulysses, ring, ranks / tensor / ulysses / ring};
        try {
          require_shareable(setup.shape, mesh, setup.batch);
          all.push_back(mesh);
        } catch (const InputError&) {  // NOLINT: not these heads
        }
      }
  return all;
}

inline Result train(const Communicator& comm, const MeshShape& mesh, const Setup& setup, Mistake mistake) {
  return RankShare(links_over(comm, mesh, setup.shape), setup, mistake).train();
}

/// How far a rank is from one process, in its worst number.
struct Distance {
  double loss, gradients, weights;

  Distance(const Result& got, const Result& want)
      : loss(0),
        gradients(matrix_error(got, want, &Result::gradients)),
        weights(matrix_error(got, want, &Result::weights)) {
    for (std::size_t step = 0; step < want.losses.size(); ++step) {
      const double error = std::abs(got.losses[step] / want.losses[step] - 1);
      loss = std::isfinite(error) ? std::max(loss, error) : std::numeric_limits<double>::infinity();
    }
  }
  [[nodiscard]] double largest() const { return std::max({loss, gradients, weights}); }
  [[nodiscard]] bool rounding() const { return loss <= 1e-9 && gradients <= 1e-11 && weights <= 1e-9; }
};

inline bool first_loss_agrees(const Result& got, const Result& want) {
  return std::abs(got.losses[0] / want.losses[0] - 1) <= 1e-12;
}

inline bool same_numbers(const Result& got, const Result& want) {
  return Distance(got, want).rounding() && first_loss_agrees(got, want) && got.labels == want.labels;
}

/// \returns whether all have the numbers of one process. Collective.
inline bool check_meshes(Lesson& lesson, const Communicator& comm, Setup setup, Mistake mistake) {
  const Result want = in_one_process(setup);
  std::size_t turn = 0;
  bool all = true;
  for (const MeshShape& mesh : meshes(setup, comm.size())) {
    setup.kind =
        std::array{PlacementKind::zigzag, PlacementKind::contiguous, PlacementKind::striped}[turn++ % 3];
    const Result got = train(comm, mesh, setup, mistake);
    Comparison comparison;
    comparison.ok = same_numbers(got, want);
    comparison.max_error = comparison.relative_error = Distance(got, want).largest();
    comparison.reason = "not the numbers of one process";
    lesson.check(to_string(mesh) + ", " + name(setup.kind) + ": two training steps", comparison);
    all = all && comparison.ok;
  }
  return all_of_ranks(comm, all);
}

/// Plausible tests. The last is the lesson's own.
inline constexpr std::array tests{
    "gradients, one rank", "gradients, data ranks",  "gradients, a ring",    "labels of all ranks",
    "first loss, a ring",  "the loss falls, a ring", "same weights, a ring", "two steps, ring and tensor"};

/// The weights of all ranks of a ring have the same bits.
inline bool same_on_all(const Communicator& comm, const Result& outcome) {
  bool same = true;
  for (const Tensor<double>& own : outcome.weights) {
    std::vector<double> of_rank_0(own.view().elements().begin(), own.view().elements().end());
    broadcast(comm, of_rank_0);
    same = same && std::ranges::equal(own.view().elements(), of_rank_0);
  }
  return same;
}

/// Which of the tests pass, on an even number of ranks. Collective.
inline std::vector<Index> passes(const Communicator& comm, const Setup& setup, Mistake mistake) {
  const Result want = in_one_process(setup);
  const auto right = [&](const Result& got) { return Distance(got, want).gradients <= 1e-11; };
  const Communicator alone(MPI_COMM_SELF);
  const Result ring = train(comm, {1, 1, comm.size(), 1}, setup, mistake);
  const Result tensor = train(comm, {2, 1, comm.size() / 2, 1}, setup, mistake);
  const std::array verdicts{right(train(alone, {}, setup, mistake)),
                            right(train(comm, {1, 1, 1, comm.size()}, setup, mistake)),
                            right(ring),
                            ring.labels == want.labels,
                            first_loss_agrees(ring, want),
                            ring.losses.back() < ring.losses.front(),
                            same_on_all(comm, ring),
                            same_numbers(ring, want) && same_numbers(tensor, want)};
  static_assert(verdicts.size() == tests.size());
  std::vector<Index> passed;
  for (const bool verdict : verdicts) passed.push_back(all_of_ranks(comm, verdict) ? 1 : 0);
  return passed;
}

inline void show_mistakes(Lesson& lesson, const Communicator& comm, const Setup& setup) {
  show_weak_tests(lesson, tests, every_mistake,
                  [&](Mistake mistake) { return passes(comm, setup, mistake); });
}

}  // namespace ring_attention::lesson_13
