// The diagnosis of simulated rings. Each test takes a sample of the mistakes; with RING_ATTENTION_ALL_MISTAKES set, in
// `make test-long`, it takes all of them.
#include "diagnose/diagnosis.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numbers>

#include "diagnose/trials.hpp"

namespace ring_attention::diagnose {
namespace {

bool takes_all() { return std::getenv("RING_ATTENTION_ALL_MISTAKES") != nullptr; }

/// Every `step`-th of them, another part for each `part`.
template <class T>
std::vector<T> sample(std::vector<T> all, std::size_t step, std::size_t part = 0) {
  if (takes_all()) return all;
  std::vector<T> some;
  for (std::size_t i = part % step; i < all.size(); i += step) some.push_back(std::move(all[i]));
  return some;
}

Options quick() {
  Options options;
  options.pairs = options.lists_not_tested = false;
  return options;
}

std::string described(const Trial& trial, const Diagnosis& diagnosis) {
  return trial.name + " -> " + text_of(diagnosis.forward) + " / " + text_of(diagnosis.backward);
}

const std::vector<Job> jobs{
    {3, PlacementKind::contiguous}, {3, PlacementKind::zigzag},    {3, PlacementKind::striped},
    {4, PlacementKind::contiguous}, {4, PlacementKind::zigzag},    {4, PlacementKind::striped},
    {4, PlacementKind::zigzag, 2},  {6, PlacementKind::zigzag, 2}, {3, PlacementKind::contiguous, 3}};

std::size_t largest_group(const Diagnosis& diagnosis) {
  return std::max(diagnosis.forward.explanations.size(), diagnosis.backward.explanations.size());
}

TEST(Diagnosis, NamesEveryMistake) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::vector<Problem> problems = problems_of(jobs[i]);
    for (const Trial& trial : sample(trials_of(Options().mistakes), 60, 7 * i)) {
      const Diagnosis diagnosis = diagnose(answers_of(trial, problems, Precision::float32), quick());
      const Outcome outcome = outcome_of(trial, diagnosis);
      EXPECT_NE(outcome, Outcome::wrong) << described(trial, diagnosis);
      EXPECT_NE(outcome, Outcome::unknown) << described(trial, diagnosis);
      const std::size_t most = jobs[i].ring() > 1 ? 2 : 3;  // Ulysses alone: every step is the own one
      EXPECT_LE(largest_group(diagnosis), most) << described(trial, diagnosis);
    }
  }
}

TEST(Diagnosis, NamesNoOtherMistakeInBf16) {
  int unknown = 0, trials = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::vector<Problem> problems = problems_of(jobs[i]);
    for (const Trial& trial : sample(trials_of(Options().mistakes), 60, 11 * i + 3)) {
      const Diagnosis diagnosis = diagnose(answers_of(trial, problems, Precision::bf16), quick());
      const Outcome outcome = outcome_of(trial, diagnosis);
      EXPECT_NE(outcome, Outcome::wrong) << described(trial, diagnosis);
      ++trials;
      if (outcome == Outcome::unknown || outcome == Outcome::group) ++unknown;
    }
  }
  EXPECT_LE(100 * unknown, 15 * trials);
}

// The same computation on two ranks: three tell them apart.
TEST(Diagnosis, GroupsWhatTwoRanksCannotTellApart) {
  const std::vector<Problem> problems = problems_of({2, PlacementKind::zigzag}, {"full", "causal"});
  const auto forward_of = [&](const char* id) {
    const Trial trial{id, {{&mistake_named(id)}}, {{&mistake_named(id)}}};
    return text_of(diagnose(answers_of(trial, problems, Precision::float32), quick()).forward);
  };
  EXPECT_EQ(forward_of("steps-short"), forward_of("no-ring"));
  EXPECT_EQ(forward_of("not-sent"), forward_of("step-before"));
  EXPECT_EQ(forward_of("v-stays"), forward_of("v-step-before"));
  EXPECT_NE(forward_of("v-stays"), forward_of("k-stays"));
}

TEST(Diagnosis, RoundsToTheBitsOfATypeToNearest) {
  for (const auto& [precision, bits] :
       {std::pair(Precision::float32, 24), std::pair(Precision::half, 11), std::pair(Precision::bf16, 8)}) {
    const double last = std::ldexp(1, 1 - bits);
    EXPECT_EQ(rounded(1 + last, precision), 1 + last) << name(precision);
    EXPECT_EQ(rounded(1 + 0.6 * last, precision), 1 + last) << name(precision);
    EXPECT_EQ(rounded(1 + 0.4 * last, precision), 1) << name(precision);
  }
}

TEST(Diagnosis, CallsRightResultsRight) {
  const int count = takes_all() ? 10000 : 100;
  const std::vector<Case> cases = ladder({3, PlacementKind::zigzag});
  for (int i = 0; i < count; ++i) {
    // Rings of other sizes add in another order.
    const Case& one = cases[static_cast<std::size_t>(i) % cases.size()];
    const auto seed = 1000 + static_cast<std::uint64_t>(i);
    const Problem asked(one, {3, PlacementKind::zigzag}, seed);
    const Problem computed(one, {1 + i % 6, i % 2 == 0 ? PlacementKind::striped : PlacementKind::contiguous},
                           seed);
    Rules rules;
    rules.direction = i % 4 < 2 ? 1 : -1;
    const Precision precision = i % 3 == 0   ? Precision::bf16
                                : i % 3 == 1 ? Precision::half
                                             : Precision::float32;
    const Forward forward = simulate_forward(computed, rules, precision);
    std::vector<Answer> answers;
    answers.push_back({&asked, simulate_backward(computed, rules, forward, precision)});
    for (const Array array : of_forward) answers[0].arrays[array] = forward.arrays[array].clone();
    const Diagnosis diagnosis = diagnose(answers, quick());
    EXPECT_TRUE(diagnosis.right()) << one.name << " " << name(precision) << " " << i << ": "
                                   << text_of(diagnosis.forward) << " / " << text_of(diagnosis.backward);
  }
}

// The check that matters most: a mistake that is not in the list.
void expect_no_name(const Job& job, Precision precision) {
  int named = 0, trials = 0;
  std::string which;
  const std::vector<Problem> problems = problems_of(job, {"full", "causal", "gqa", "window", "sinks"});
  for (const Trial& trial : sample(trials_of(Options().mistakes), 45)) {
    Options options = quick();
    std::erase_if(options.mistakes, [&](const Mistake* mistake) {
      return trial.forward.has(mistake) || trial.backward.has(mistake);
    });
    const Diagnosis diagnosis = diagnose(answers_of(trial, problems, precision), options);
    const Outcome outcome = outcome_of(trial, diagnosis);
    if (outcome == Outcome::wrong || outcome == Outcome::unknown) ++trials;
    if (outcome != Outcome::wrong) continue;
    ++named;
    which += described(trial, diagnosis) + "\n";
  }
  EXPECT_LE(named, std::max(1, trials * 2 / 100))
      << name(job.placement) << ", " << job.ranks << " ranks, " << name(precision) << "\n"
      << which;
}

TEST(Diagnosis, GivesNoNameToAMistakeThatIsNotListed) {
  expect_no_name({3, PlacementKind::zigzag}, Precision::float32);
  if (!takes_all()) return;
  for (const int ranks : {3, 4})
    for (const PlacementKind placement :
         {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag})
      for (const Precision precision : {Precision::float32, Precision::bf16})
        expect_no_name({ranks, placement}, precision);
}

TEST(Diagnosis, NamesBothOfTwoMistakes) {
  const std::vector<Problem> problems = problems_of({3, PlacementKind::zigzag}, {"full", "causal", "gqa"});
  Options options;
  options.lists_not_tested = false;
  for (const auto& [first, second] : {std::pair("gqa-modulo", "steps-short"),
                                      {"mask-local", "scale-all-heads"},
                                      {"merge-base-2", "causal-strict"},
                                      {"no-delta", "hop-short"}}) {
    Trial trial{std::string(first) + " + " + second, {}, {}};
    for (const char* id : {first, second}) {
      const Mistake& mistake = mistake_named(id);
      if (mistake.in_forward()) trial.forward.mistakes.push_back(&mistake);
      if (mistake.in_backward()) trial.backward.mistakes.push_back(&mistake);
    }
    const Diagnosis diagnosis = diagnose(answers_of(trial, problems, Precision::float32), options);
    EXPECT_EQ(outcome_of(trial, diagnosis), Outcome::named) << described(trial, diagnosis);
  }
}

/// Right results in another convention.
std::vector<Answer> in_convention(const std::vector<Problem>& problems, const Trial& trial,
                                  const std::function<void(const Problem&, Arrays&)>& change) {
  std::vector<Answer> answers = answers_of(trial, problems, Precision::float32);
  for (Answer& answer : answers) change(*answer.problem, answer.arrays);
  return answers;
}

void to_base_2(const Problem&, Arrays& arrays) {
  for (double& x : arrays[Array::lse].view().elements())
    x = rounded(x / std::numbers::ln2, Precision::float32);
}

void to_rank_order(const Problem& problem, Arrays& arrays) {
  for (const Array array : all_arrays) {
    const Tensor<double> right = arrays[array].clone();
    Index row = 0;
    for (int rank = 0; rank < problem.job.ranks; ++rank)
      for (const Index token : positions(problem.job.tokens_of(rank, problem.the_case.tokens))) {
        for (Index head = 0; head < right.shape().heads; ++head)
          std::ranges::copy(right.view().row(0, head, token), arrays[array].view().row(0, head, row).begin());
        ++row;
      }
  }
}

TEST(Diagnosis, SaysConventionsAndDoesNotCallThemWrong) {
  const std::vector<Problem> problems = problems_of({3, PlacementKind::zigzag}, {"full", "causal"});
  const auto gradients_times = [](double factor) {
    return [=](const Problem&, Arrays& arrays) {
      for (const Array array : of_backward)
        for (double& x : arrays[array].view().elements()) x *= factor;
    };
  };
  const std::vector<std::pair<std::string, std::function<void(const Problem&, Arrays&)>>> conventions{
      {"base 2", to_base_2},
      {"order of the ranks", to_rank_order},
      {"times 3", gradients_times(3)},
      {"by 3", gradients_times(1.0 / 3)}};
  const Trial none{"none", {}, {}},
      wrong{"mask-local", {{&mistake_named("mask-local")}}, {{&mistake_named("mask-local")}}};
  for (const auto& [word, change] : conventions) {
    const Diagnosis right = diagnose(in_convention(problems, none, change), quick());
    EXPECT_TRUE(right.right()) << word;
    ASSERT_EQ(right.conventions.size(), 1U) << word;
    EXPECT_NE(right.conventions[0].find(word), std::string::npos) << right.conventions[0];
  }
  for (const auto& change : {to_base_2, to_rank_order}) {
    const Diagnosis diagnosis = diagnose(in_convention(problems, wrong, change), quick());
    EXPECT_EQ(text_of(diagnosis.forward), "mask-local");
    EXPECT_EQ(diagnosis.conventions.size(), 1U);
  }
}

TEST(Diagnosis, ListsWhatTheCasesDoNotTest) {
  const std::vector<Problem> problems = problems_of({3, PlacementKind::zigzag}, {"full"});
  const Diagnosis diagnosis = diagnose(answers_of({"none", {}, {}}, problems, Precision::float32));
  const auto lists = [&](const char* id) {
    return std::ranges::find(diagnosis.not_tested, &mistake_named(id)) != diagnosis.not_tested.end();
  };
  for (const char* id : {"causal-strict", "gqa-modulo", "window-plus-one", "sink-ignored"})
    EXPECT_TRUE(lists(id)) << id;
  for (const char* id : {"steps-short", "no-scale", "no-delta", "average"}) EXPECT_FALSE(lists(id)) << id;
}

}  // namespace
}  // namespace ring_attention::diagnose
