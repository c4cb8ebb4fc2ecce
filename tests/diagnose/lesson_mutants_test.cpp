// Mutants of the lessons, run on ranks of MPI with the code of their lesson, are named from their own output.
#include <gtest/gtest.h>

#include "diagnose/lesson_formulas.hpp"

namespace ring_attention::diagnose {
namespace {

/// A mutant, as the list calls it, and what it returned.
struct Mutant {
  std::string name;
  std::vector<Answer> answers;
};

Diagnosis quick_diagnosis(const std::vector<Answer>& answers) {
  Options options;
  options.pairs = options.lists_not_tested = false;
  return diagnose(answers, options);
}

/// Each rank diagnoses some of them.
void expect_named(const Communicator& comm, const std::vector<Mutant>& mutants) {
  for (std::size_t i = 0; i < mutants.size(); ++i) {
    if (static_cast<int>(i) % comm.size() != comm.rank()) continue;
    const Mutant& mutant = mutants[i];
    const Diagnosis diagnosis = quick_diagnosis(mutant.answers);
    const std::string said = text_of(diagnosis.forward) + " / " + text_of(diagnosis.backward);
    std::printf("%s: %s\n", mutant.name.c_str(), said.c_str());
    const Pass& wrong = diagnosis.forward.state == State::right ? diagnosis.backward : diagnosis.forward;
    EXPECT_TRUE(diagnosis.explained()) << mutant.name << ": " << said;
    EXPECT_TRUE(says(wrong, {&mistake_of_mutant(mutant.name)})) << mutant.name << ": " << said;
  }
}

class LessonMutants : public testing::Test {
 protected:
  explicit LessonMutants(int ranks = 3) : ranks_(ranks) {}
  void SetUp() override {
    if (comm_.size() != ranks_) GTEST_SKIP() << "runs on " << ranks_ << " ranks";
  }
  int ranks_;
  Communicator comm_{MPI_COMM_WORLD};
  std::map<std::string, std::vector<Problem>>
      problems_;  // by the names of their cases; answers point into them

  const std::vector<Problem>& problems(const std::vector<std::string>& only,
                                       PlacementKind placement = PlacementKind::contiguous) {
    std::string names = name(placement);
    for (const std::string& one : only) names += " " + one;
    if (!problems_.contains(names)) problems_.emplace(names, problems_of({comm_.size(), placement}, only));
    return problems_.at(names);
  }
  std::vector<Answer> run(const LessonRing& ring, const std::vector<Problem>& problems) {
    std::vector<Answer> answers;
    for (const Problem& problem : problems)
      answers.push_back(answer_of(comm_, problem, RankOfLessonRing(comm_, problem, ring).run()));
    return answers;
  }
};

const std::vector<std::string> plain{"full", "causal", "gqa"};

LessonRing with_tiles(const std::function<void(idea_03::Rules&)>& change) {
  idea_03::Rules rules;
  change(rules);
  LessonRing ring;
  ring.engine = [=](const Scoring& scoring, Index, View<const float> q, const TokenRanges& ranges,
                    View<const float>) {
    auto engine = std::make_unique<TileEngine>(scoring, rules);
    engine->begin(q, ranges);
    return engine;
  };
  return ring;
}

TEST_F(LessonMutants, RightRingsAreRight) {
  LessonRing overlapped;
  overlapped.forward = idea_06::ring;
  const auto right = [&](const LessonRing& ring) {
    const Diagnosis diagnosis = quick_diagnosis(run(ring, problems(plain)));
    return diagnosis.right();
  };
  EXPECT_TRUE(right({}));
  EXPECT_TRUE(right(overlapped));
  EXPECT_TRUE(right(with_tiles([](idea_03::Rules&) {})));
}

TEST_F(LessonMutants, OfTiles) {
  const auto& masked = problems({"full", "causal", "gqa", "window", "documents"});
  std::vector<Mutant> mutants;
  const auto add = [&](const char* name, auto change) {
    mutants.push_back({name, run(with_tiles(change), masked)});
    for (Answer& answer : mutants.back().answers)  // the lesson has no backward
      for (const Array array : of_backward) answer.arrays[array] = {};
  };
  add("lesson 03 unguarded",
      [](idea_03::Rules& rules) { rules.factor = [](float from, float to) { return std::exp(from - to); }; });
  add("lesson 03 o-stays", [](idea_03::Rules& rules) { rules.move_o = false; });
  add("lesson 03 skip-diagonal", [](idea_03::Rules& rules) {
    rules.skip = [](Coverage coverage) { return coverage != Coverage::full; };
  });
  expect_named(comm_, mutants);
}

TEST_F(LessonMutants, OfFormulas) {
  std::vector<Mutant> mutants;
  const auto by_rules = [&](const char* name, const idea_00::Rules& rules) {
    mutants.push_back({name, {}});
    for (const Problem& problem : problems(plain))
      mutants.back().answers.push_back(by_formula(problem, rules));
  };
  by_rules("lesson 00 no-scale", {.scale = false});
  by_rules("lesson 00 future", {.future = 1});
  const auto by_merge = [&](const char* name, idea_02::lse_forms::Merge merge) {
    LessonRing ring;
    ring.engine = [=](const Scoring& scoring, Index, View<const float> q, const TokenRanges& ranges,
                      View<const float>) {
      auto engine = std::make_unique<MergingEngine>(scoring, merge);
      engine->begin(q, ranges);
      return engine;
    };
    mutants.push_back({name, run(ring, problems({"full", "causal", "large"}))});
    for (Answer& answer : mutants.back().answers)  // the lesson has no backward
      for (const Array array : of_backward) answer.arrays[array] = {};
  };
  for (const idea_02::lse_forms::Merge right : {idea_02::log1p_form<float>, idea_02::sigmoid_form<float>}) {
    by_merge("", right);
    EXPECT_TRUE(quick_diagnosis(mutants.back().answers).right());
    mutants.pop_back();
  }
  by_merge("lesson 02 textbook-lse", idea_02::lse_forms::textbook_form);
  by_merge("lesson 02 swapped-sign", idea_02::lse_forms::swapped_form);
  expect_named(comm_, mutants);
}

TEST_F(LessonMutants, OfRings) {
  LessonRing short_05, short_06, early, local;
  short_05.steps_left_out = short_06.steps_left_out = 1;
  short_06.forward = idea_06::ring;
  early.forward = idea_06_early::ring;
  early.after_arrival = true;
  local.engine = [](const Scoring& scoring, Index, View<const float> q, const TokenRanges& ranges,
                    View<const float>) {
    auto engine = std::make_unique<LocalEngine>(scoring);
    engine->begin(q, ranges);
    return engine;
  };
  std::vector<Mutant> mutants;
  mutants.push_back({"lesson 05 step-too-few", run(short_05, problems(plain))});
  mutants.push_back({"lesson 06 step-too-few", run(short_06, problems(plain))});
  mutants.push_back({"lesson 06 early-advance", run(early, problems(plain))});
  mutants.push_back({"lesson 09 local-mask", run(local, problems(plain))});
  expect_named(comm_, mutants);
}

TEST_F(LessonMutants, OfBackwards) {
  std::vector<Mutant> mutants;
  const auto by_tiles = [&](const char* name, const idea_07::Mistakes& mistakes) {
    mutants.push_back({name, {}});
    for (const Problem& problem : problems({"causal", "gqa"}))
      mutants.back().answers.push_back(by_hand(problem, mistakes));
  };
  by_tiles("lesson 07 missing-scale", {.missing_scale = true});
  by_tiles("lesson 07 no-delta", {.no_delta = true});
  by_tiles("lesson 07 tile-lse", {.tile_lse = true});
  const auto by_ring = [&](const char* name, lesson_08::Variant variant) {
    LessonRing ring;
    ring.variant = variant;
    mutants.push_back({name, run(ring, problems(plain))});
  };
  by_ring("lesson 08 stay-local", lesson_08::Variant::stay_local);
  by_ring("lesson 08 shard-delta", lesson_08::Variant::shard_delta);
  by_ring("lesson 08 hop-too-few", lesson_08::Variant::hop_too_few);
  expect_named(comm_, mutants);
}

TEST_F(LessonMutants, OfRulesOfPairs) {
  using lesson_12::Mistake;
  std::vector<Problem> one_bias;  // lesson 12 has one bias for all heads
  for (const Case& one : ladder({comm_.size(), PlacementKind::contiguous}))
    if (one.name == "full" || one.name == "bias") {
      Case changed = one;
      changed.heads = changed.kv_heads = 1;
      one_bias.emplace_back(changed, Job{comm_.size(), PlacementKind::contiguous}, 1);
    }
  std::vector<Mutant> mutants;
  const auto add = [&](const char* name, Mistake mistake, const std::vector<Problem>& on) {
    mutants.push_back({name, {}});
    for (const Problem& problem : on)
      mutants.back().answers.push_back(answer_of(comm_, problem, by_pairs(comm_, problem, mistake)));
  };
  add("lesson 12 local-mask", Mistake::local_mask, problems({"full", "causal", "gqa"}));
  add("lesson 12 local-alibi", Mistake::local_alibi, problems({"causal", "alibi"}));
  add("lesson 12 local-columns", Mistake::local_columns, one_bias);
  add("lesson 12 scaled-bias", Mistake::scaled_bias, one_bias);
  add("lesson 12 sink-every-rank", Mistake::sink_every_rank, problems({"causal", "sinks"}));
  add("lesson 12 sink-every-step", Mistake::sink_every_step, problems({"causal", "sinks"}));
  expect_named(comm_, mutants);
}

struct HybridMutants : LessonMutants {
  HybridMutants() : LessonMutants(6) {}
};

// 2 ranks share the heads, 3 are a ring.
TEST_F(HybridMutants, OfUlysses) {
  const Job job{comm_.size(), PlacementKind::zigzag, 2};
  std::vector<std::unique_ptr<Problem>> made;
  std::vector<Mutant> mutants;
  const auto add = [&](const char* mutant, const char* of_case, Index heads, Index kv_heads) {
    std::vector<Case> cases = ladder(job);
    Case c = *std::ranges::find(cases, of_case, &Case::name);
    c.heads = heads;
    c.kv_heads = kv_heads;
    RandomProblem random{c.q(), c.kv(), {c.scale(), Mask::causal()}};
    if (c.alibi) random.scoring.alibi_slopes = alibi_slopes(heads);
    made.push_back(std::make_unique<Problem>(problem_of_lesson_10(c, job, random)));

    Lesson lesson("10", "", "", &comm_);
    lesson.offer_mutants(lesson_10::mutants);
    const std::array arguments{"10", "--json", "--mutant", mutant};
    ASSERT_TRUE(lesson.parse(static_cast<int>(arguments.size()), arguments.data()));
    const lesson_10::Part part(comm_, random, job.ulysses, lesson);
    lesson_10::Sent sent;
    const lesson_10::Outcome got = lesson_10::run(part, sent);
    const Returned rows{part.tokens(),
                        {converted<double>(got.attended.out), converted<double>(got.attended.lse)},
                        {converted<double>(got.gradients.q), converted<double>(got.gradients.k),
                         converted<double>(got.gradients.v)}};
    mutants.push_back({std::string("lesson 10 ") + mutant, {}});
    mutants.back().answers.push_back(answer_of(comm_, *made.back(), rows));
  };
  add("interleaved-heads", "gqa", 4, 2);
  add("first-replica", "gqa", 2, 1);
  add("world-placement", "causal", 4, 4);
  add("swapped-axes", "causal", 6, 6);
  add("local-heads", "alibi", 4, 4);
  expect_named(comm_, mutants);
}

}  // namespace
}  // namespace ring_attention::diagnose
