// Lesson 15, beside the idea: plausible tests, and the mistakes that pass them.
#pragma once

#include "common/weak_tests.hpp"
#include "part.hpp"

namespace ring_attention::lesson_15 {

/// The most tokens that a rank may hold: its prompt, and its share of the others.
inline Index fair_share(const Setup& setup, int ranks) {
  const Index prompt = Placement(setup.kind, setup.prompt, ranks).max_tokens(),
              new_tokens = setup.q.seq - setup.prompt;
  return prompt + (new_tokens + ranks - 1) / ranks;
}

inline bool agrees(const Tensor<double>& got, const Tensor<double>& want, double relative) {
  const Comparison comparison = compare(got, want, {.absolute = 1e300});  // finite?
  return comparison.ok && comparison.relative_error < relative;
}

/// What each test says of a mistake. Collective.
class WeakTests {
 public:
  WeakTests(const Communicator& comm, std::uint64_t seed)
      : comm_(comm),
        usual_(setup(40, 4, seed)),
        from_first_(setup(0, 12, seed)),
        long_(setup(500, 2, seed)),
        zero_(setup(40, 4, seed)) {
    zero_.zero_query = true;
  }

  /// Which of the tests pass, in their order.
  [[nodiscard]] std::vector<Index> passes(Mistake mistake) const {
    const Run alone(Communicator(MPI_COMM_SELF), usual_, mistake), usual(comm_, usual_, mistake),
        first(comm_, from_first_, mistake), many(comm_, long_, mistake), zero(comm_, zero_, mistake);
    const bool fair = first.got.held <= fair_share(from_first_, comm_.size());
    const std::array verdicts{
        alone.out_within(exact),
        same_on_all(usual.got),
        agrees(first.got.rows.out, first.got.rows.out, 1),
        many.out_within(0.1),
        zero.out_within(exact),
        usual.out_within(exact),
        fair,
        first.out_within(exact) && agrees(first.got.rows.lse, first.want.lse, exact) && fair};
    static_assert(verdicts.size() == tests.size());
    std::vector<Index> passes;
    for (const bool verdict : verdicts) passes.push_back(all_of_ranks(comm_, verdict) ? 1 : 0);
    return passes;
  }

 private:
  static constexpr double exact = 1e-12;

  /// One setup, decoded with a mistake, and what is right.
  struct Run {
    Run(const Communicator& comm, const Setup& setup, Mistake mistake) {
      const RankShare part(comm, setup);
      got = part.run(mistake);
      want = part.oracle();
    }
    [[nodiscard]] bool out_within(double relative) const { return agrees(got.rows.out, want.out, relative); }
    Result got;
    Reference want;
  };

  static Setup setup(Index prompt, Index tokens, std::uint64_t seed) {
    return {{1, 4, prompt + tokens, 16}, {1, 2, prompt + tokens, 16}, prompt, seed};
  }
  [[nodiscard]] bool same_on_all(const Result& outcome) const {
    const View<const double> own = outcome.rows.out;
    std::vector<double> of_rank_0(own.elements().begin(), own.elements().end());
    broadcast(comm_, of_rank_0);
    return bitwise_equal(own, View<const double>(of_rank_0.data(), own.shape()));
  }

  const Communicator& comm_;
  Setup usual_, from_first_, long_, zero_;
};

inline void show_mistakes(Lesson& lesson, const Communicator& comm) {
  const WeakTests weak(comm, lesson.seed());
  show_weak_tests(lesson, tests, every_mistake, [&](Mistake mistake) { return weak.passes(mistake); });
}

}  // namespace ring_attention::lesson_15
