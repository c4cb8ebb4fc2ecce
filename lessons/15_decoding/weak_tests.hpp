// Lesson 15, beside the idea: plausible tests, and the mistakes that pass them.
#pragma once

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

/// Every test on one mistake. Collective.
class WeakTests {
 public:
  WeakTests(const Communicator& comm, std::uint64_t seed) : comm_(comm), seed_(seed) {}

  [[nodiscard]] bool passes(Test test, Mistake mistake) const {
    return all_of_ranks(comm_, holds(test, mistake));
  }

 private:
  static constexpr double exact = 1e-12;

  [[nodiscard]] Setup setup(Index prompt, Index tokens) const {
    return {{1, 4, prompt + tokens, 16}, {1, 2, prompt + tokens, 16}, prompt, seed_};
  }
  [[nodiscard]] bool out_agrees(const Communicator& comm, const Setup& setup, Mistake mistake,
                                double relative) const {
    const Part part(comm, setup);
    return agrees(part.run(mistake).rows.out, part.oracle().out, relative);
  }
  [[nodiscard]] bool same_on_all(const Outcome& outcome) const {
    const View<const double> own = outcome.rows.out;
    std::vector<double> of_rank_0(own.elements().begin(), own.elements().end());
    broadcast(comm_, of_rank_0);
    return bitwise_equal(own, View<const double>(of_rank_0.data(), own.shape()));
  }

  [[nodiscard]] bool holds(Test test, Mistake mistake) const {
    const Setup usual = setup(40, 8), from_first = setup(0, 24);
    switch (test) {
      case Test::one_rank: return out_agrees(Communicator(MPI_COMM_SELF), usual, mistake, exact);
      case Test::same_on_all: return same_on_all(Part(comm_, usual).run(mistake));
      case Test::finite: return agrees_in_size(Part(comm_, from_first).run(mistake));
      case Test::within_ten_percent: return out_agrees(comm_, setup(500, 4), mistake, 0.1);
      case Test::zero_query: {
        Setup zero = usual;
        zero.zero_query = true;
        return out_agrees(comm_, zero, mistake, exact);
      }
      case Test::long_prompt: return out_agrees(comm_, usual, mistake, exact);
      case Test::tokens_held:
        return Part(comm_, from_first).run(mistake).held <= fair_share(from_first, comm_.size());
      case Test::every_token: break;
    }
    const Part part(comm_, from_first);
    const Outcome got = part.run(mistake);
    const Reference want = part.oracle();
    return agrees(got.rows.out, want.out, exact) && agrees(got.rows.lse, want.lse, exact) &&
           got.held <= fair_share(from_first, comm_.size());
  }
  static bool agrees_in_size(const Outcome& outcome) { return agrees(outcome.rows.out, outcome.rows.out, 1); }

  const Communicator& comm_;
  std::uint64_t seed_;
};

inline void show_mistakes(Lesson& lesson, const Communicator& comm) {
  const WeakTests tests(comm, lesson.seed());
  std::vector<std::string> heading{"test", "right"};
  for (const Wrong& wrong : every_mistake) heading.emplace_back(wrong.name);
  Table table(heading);
  std::vector<std::vector<Index>> passes;
  bool right_passes = true, each_misses = true, last_catches = true;
  for (std::size_t i = 0; i < test_names.size(); ++i) {
    const auto test = static_cast<Test>(i);
    std::vector<std::string> cells{test_names[i]};
    auto& row = passes.emplace_back();
    const auto enter = [&](Mistake mistake) {
      row.push_back(tests.passes(test, mistake) ? 1 : 0);
      cells.emplace_back(row.back() == 1 ? "passes" : "caught");
    };
    enter(Mistake::none);
    for (const Wrong& wrong : every_mistake) enter(wrong.mistake);
    table.row(cells);
    const Index missed = std::count(row.begin() + 1, row.end(), 1);
    right_passes = right_passes && row[0] == 1;
    if (test == Test::every_token)
      last_catches = missed == 0;
    else
      each_misses = each_misses && missed > 0;
  }
  lesson.print(table);
  lesson.record("mistake_passes", passes);
  lesson.check("what is right passes every test", right_passes);
  lesson.check("each test but the last passes for a mistake", each_misses);
  lesson.check("the last one catches them all", last_catches);
}

}  // namespace ring_attention::lesson_15
