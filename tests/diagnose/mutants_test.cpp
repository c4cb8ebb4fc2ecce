// Rings that really run are right, or named: each mutant of tests/support from its own output.
#include <gtest/gtest.h>

#include "diagnose/running_rings.hpp"

namespace ring_attention::diagnose {
namespace {

/// The cases of a ring of the library: all but those with padding.
std::vector<Problem> problems(PlacementKind placement, int ranks = 4) {
  return problems_of({ranks, placement}, {"full", "causal", "gqa", "window", "documents", "alibi", "bias",
                                          "sinks", "uneven", "large"});
}

Diagnosis diagnosis_of(const Running& ring, PlacementKind placement,
                       const std::vector<std::string>& without = {}) {
  static std::map<PlacementKind, std::vector<Problem>> made;
  if (!made.contains(placement)) made.emplace(placement, problems(placement));
  std::vector<Answer> answers;
  for (const Problem& problem : made.at(placement))
    if (std::ranges::find(without, problem.the_case.name) == without.end())
      answers.push_back(answer_of(problem, ring));
  Options options;
  options.pairs = options.lists_not_tested = false;
  return diagnose(answers, options);
}

std::string described(const Diagnosis& diagnosis) {
  std::string text = text_of(diagnosis.forward) + " / " + text_of(diagnosis.backward);
  for (const CaseAlone& one : diagnosis.alone)
    text += "\n  " + one.name + " alone: " + text_of(one.forward) + " / " + text_of(one.backward);
  for (const Pass* pass : {&diagnosis.forward, &diagnosis.backward})
    for (const Explanation& near : pass->near)
      text += "\n  near: " + near.hypothesis.mistakes.back()->id + " " + std::to_string(near.explained);
  return text;
}

TEST(RunningRing, ARightOneIsRight) {
  for (const PlacementKind placement : test::placement_kinds)
    for (const bool fast : {false, true}) {
      Running ring;
      if (fast) {
        ring.forward = [](const Problem&) { return test::make_forward<float, CpuEngine<float>>; };
        ring.backward = test::make_backward<float, CpuBackward<float>>;
      }
      const Diagnosis diagnosis = diagnosis_of(ring, placement);
      EXPECT_TRUE(diagnosis.right()) << name(placement) << ": " << text_of(diagnosis.forward) << " / "
                                     << text_of(diagnosis.backward);
    }
}

TEST(RunningRing, AWrongForwardIsNamed) {
  for (const Wrong& wrong : wrong_forwards()) {
    const Diagnosis diagnosis = diagnosis_of(wrong.ring, PlacementKind::contiguous, wrong.without);
    EXPECT_EQ(text_of(diagnosis.forward), wrong.id()) << wrong.name;
    EXPECT_TRUE(diagnosis.explained()) << wrong.name << ": " << described(diagnosis);
  }
}

TEST(RunningRing, AWrongBackwardIsNamed) {
  for (const Wrong& wrong : wrong_backwards()) {
    const Diagnosis diagnosis = diagnosis_of(wrong.ring, PlacementKind::contiguous, wrong.without);
    EXPECT_EQ(text_of(diagnosis.forward), "right") << wrong.name;
    EXPECT_EQ(text_of(diagnosis.backward), wrong.id()) << described(diagnosis);
  }
}

TEST(RunningHybrid, AWrongOneIsNamed) {
  const Job job{6, PlacementKind::zigzag, 2};
  for (const WrongHybrid& wrong : wrong_hybrids()) {
    const Problem problem(wrong.the_case(job), job, 1);
    std::vector<Answer> answers;
    answers.push_back(answer_of_hybrid(problem, *wrong.rules));
    Options options;
    options.pairs = options.lists_not_tested = false;
    const Diagnosis diagnosis = diagnose(answers, options);
    EXPECT_TRUE(diagnosis.explained()) << wrong.name << ": " << described(diagnosis);
    const Pass& pass = diagnosis.forward.state == State::right ? diagnosis.backward : diagnosis.forward;
    EXPECT_TRUE(says(pass, {&mistake_of_mutant(wrong.name)})) << wrong.name << ": " << described(diagnosis);
  }
}

}  // namespace
}  // namespace ring_attention::diagnose
