// lesson_rings FOLDER: runs the rings of the lessons, right ones and their mutants, on 3 or 6 ranks of MPI with the code of
// the lessons, and writes what they return.
#include "diagnose/lesson_formulas.hpp"
#include "ring_attention/mpi/agreement.hpp"

using namespace ring_attention;
using namespace ring_attention::diagnose;

namespace {

class LessonRings {
 public:
  LessonRings(const Communicator& comm, std::string folder) : comm_(comm), folder_(std::move(folder)) {}

  void run_all() {
    right_rings();
    of_tiles();
    of_formulas();
    of_rings();
    of_backwards();
    of_rules_of_pairs();
  }
  void of_ulysses();

 private:
  void right_rings();
  void of_tiles();
  void of_formulas();
  void of_rings();
  void of_backwards();
  void of_rules_of_pairs();

  /// Without a backward, if the lesson has none.
  void keep(const std::string& name, std::vector<Answer> answers, bool forward_alone = false) {
    if (forward_alone)
      for (Answer& answer : answers)
        for (const Array array : of_backward) answer.arrays[array] = {};
    if (comm_.rank() == 0) save({name, std::move(answers)}, folder_ + "/" + std::to_string(count_));
    ++count_;
  }
  const std::vector<Trial>& problems(const std::vector<std::string>& only,
                                     PlacementKind placement = PlacementKind::contiguous) {
    std::string names = name(placement);
    for (const std::string& one : only) names += " " + one;
    if (!problems_.contains(names)) problems_.emplace(names, problems_of({comm_.size(), placement}, only));
    return problems_.at(names);
  }
  std::vector<Answer> run(const LessonRing& ring, const std::vector<Trial>& problems) {
    std::vector<Answer> answers;
    for (const Trial& problem : problems)
      answers.push_back(answer_of(comm_, problem, RankOfLessonRing(comm_, problem, ring).run()));
    return answers;
  }

  const Communicator& comm_;
  std::string folder_;
  int count_ = 0;
  std::map<std::string, std::vector<Trial>>
      problems_;  // by the names of their cases; answers point into them
};

const std::vector<std::string> plain{"full", "causal", "gqa"};

LessonRing with_tiles(const std::function<void(idea_03::Choices&)>& change) {
  idea_03::Choices rules;
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

void LessonRings::right_rings() {
  LessonRing overlapped;
  overlapped.forward = idea_06::ring;
  keep("right", run({}, problems(plain)));
  keep("right", run(overlapped, problems(plain)));
  keep("right", run(with_tiles([](idea_03::Choices&) {}), problems(plain)));
}

void LessonRings::of_tiles() {
  const auto& masked = problems({"full", "causal", "gqa", "window", "documents"});
  const auto add = [&](const char* name, auto change) { keep(name, run(with_tiles(change), masked), true); };
  add("lesson 03 unguarded", [](idea_03::Choices& rules) {
    rules.factor = [](float from, float to) { return std::exp(from - to); };
  });
  add("lesson 03 o-stays", [](idea_03::Choices& rules) { rules.move_o = false; });
  add("lesson 03 skip-diagonal", [](idea_03::Choices& rules) {
    rules.skip = [](Coverage coverage) { return coverage != Coverage::full; };
  });
}

void LessonRings::of_formulas() {
  const auto by_rules = [&](const char* name, const idea_00::Choices& rules) {
    std::vector<Answer> answers;
    for (const Trial& problem : problems(plain)) answers.push_back(by_formula(problem, rules));
    keep(name, std::move(answers));
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
    keep(name, run(ring, problems({"full", "causal", "large"})), true);
  };
  for (const idea_02::lse_forms::Merge right : {idea_02::log1p_form<float>, idea_02::sigmoid_form<float>})
    by_merge("right", right);
  by_merge("lesson 02 textbook-lse", idea_02::lse_forms::textbook_form);
  by_merge("lesson 02 swapped-sign", idea_02::lse_forms::swapped_form);
}

void LessonRings::of_rings() {
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
  keep("lesson 05 step-too-few", run(short_05, problems(plain)));
  keep("lesson 06 step-too-few", run(short_06, problems(plain)));
  keep("lesson 06 early-advance", run(early, problems(plain)));
  keep("lesson 09 local-mask", run(local, problems(plain)));
}

void LessonRings::of_backwards() {
  const auto by_tiles = [&](const char* name, const idea_07::Mistakes& mistakes) {
    std::vector<Answer> answers;
    for (const Trial& problem : problems({"causal", "gqa"})) answers.push_back(by_hand(problem, mistakes));
    keep(name, std::move(answers));
  };
  by_tiles("lesson 07 missing-scale", {.missing_scale = true});
  by_tiles("lesson 07 no-delta", {.no_delta = true});
  by_tiles("lesson 07 tile-lse", {.tile_lse = true});
  const auto by_ring = [&](const char* name, lesson_08::Variant variant) {
    LessonRing ring;
    ring.variant = variant;
    keep(name, run(ring, problems(plain)));
  };
  by_ring("lesson 08 stay-local", lesson_08::Variant::stay_local);
  by_ring("lesson 08 shard-delta", lesson_08::Variant::shard_delta);
  by_ring("lesson 08 hop-too-few", lesson_08::Variant::hop_too_few);
}

void LessonRings::of_rules_of_pairs() {
  std::vector<Trial> one_bias;  // lesson 12 has one bias for all heads
  for (const DiagnoseCase& one : ladder({comm_.size(), PlacementKind::contiguous}))
    if (one.name == "full" || one.name == "bias") {
      DiagnoseCase changed = one;
      changed.heads = changed.kv_heads = 1;
      one_bias.emplace_back(changed, JobShape{comm_.size(), PlacementKind::contiguous}, 1);
    }
  const auto add = [&](const char* mistake, const std::vector<Trial>& on) {
    std::vector<Answer> answers;
    for (const Trial& problem : on)
      answers.push_back(answer_of(comm_, problem, by_pairs(comm_, problem, mistake)));
    keep(std::string("lesson 12 ") + mistake, std::move(answers));
  };
  add("local-mask", problems({"full", "causal", "gqa"}));
  add("local-alibi", problems({"causal", "alibi"}));
  add("local-columns", one_bias);
  add("scaled-bias", one_bias);
  add("sink-every-rank", problems({"causal", "sinks"}));
  add("sink-every-step", problems({"causal", "sinks"}));
}

// 2 ranks share the heads, 3 are a ring.
void LessonRings::of_ulysses() {
  const JobShape job{comm_.size(), PlacementKind::zigzag, 2};
  const auto add = [&](const char* mutant, const char* of_case, Index heads, Index kv_heads) {
    std::vector<DiagnoseCase> cases = ladder(job);
    DiagnoseCase c = *std::ranges::find(cases, of_case, &DiagnoseCase::name);
    c.heads = heads;
    c.kv_heads = kv_heads;
    RandomProblem random{c.q(), c.kv(), {c.scale(), Mask::causal()}};
    if (c.alibi) random.scoring.alibi_slopes = alibi_slopes(heads);
    const Trial problem = problem_of_lesson_10(c, job, random);
    Lesson lesson("10", "", "", &comm_);
    lesson.offer_mutants(lesson_10::mutants);
    const std::array arguments{"10", "--json", "--mutant", mutant};
    require(lesson.parse(static_cast<int>(arguments.size()), arguments.data()), "lesson 10 has this mutant");
    const lesson_10::RankShare part(comm_, random, job.ulysses, lesson);
    lesson_10::Sent sent;
    const lesson_10::Result got = lesson_10::run(part, sent);
    const Returned rows{part.tokens(),
                        {converted<double>(got.attended.out), converted<double>(got.attended.lse)},
                        {converted<double>(got.gradients.q), converted<double>(got.gradients.k),
                         converted<double>(got.gradients.v)}};
    std::vector<Answer> answers;
    answers.push_back(answer_of(comm_, problem, rows));
    keep(std::string("lesson 10 ") + mutant, std::move(answers));
  };
  add("interleaved-heads", "gqa", 4, 2);
  add("first-replica", "gqa", 2, 1);
  add("world-placement", "causal", 4, 4);
  add("swapped-axes", "causal", 6, 6);
  add("local-heads", "alibi", 4, 4);
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    LessonRings rings(comm, argc > 1 ? argv[1] : "rings");
    if (comm.size() == 6)
      rings.of_ulysses();
    else
      rings.run_all();
    return 0;
  });
}
