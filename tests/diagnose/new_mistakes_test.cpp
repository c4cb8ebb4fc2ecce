// Thirty mistakes that are not in the list, written when the classifier was done. None of them may get the name of one that is.
#include <gtest/gtest.h>

#include <cstdlib>

#include "diagnose/new_mistakes.hpp"

namespace ring_attention::diagnose {
namespace {

TEST(NewMistakes, GetNoName) {
  const std::vector<Problem> problems =
      problems_of({3, PlacementKind::zigzag}, {"full", "causal", "gqa", "sinks"});
  ASSERT_EQ(new_mistakes.size(), 30U);
  const std::size_t step = std::getenv("RING_ATTENTION_ALL_MISTAKES") != nullptr ? 1 : 8;
  for (std::size_t i = 0; i < new_mistakes.size(); i += step) {
    const NewMistake& wrong = new_mistakes[i];
    Mistake made;
    const Trial trial = trial_of(wrong, made);
    Options options;
    options.pairs = options.lists_not_tested = false;
    const Diagnosis diagnosis = diagnose(answers_of(trial, problems, Precision::float32), options);
    EXPECT_FALSE(diagnosis.right()) << wrong.name;
    const bool named =
        diagnosis.forward.state == State::named ||
        (diagnosis.backward.state == State::named && !diagnosis.backward.explanations.front().is_derivative &&
         !diagnosis.backward.explanations.front().hypothesis.mistakes.empty());
    EXPECT_FALSE(named) << wrong.name << ": " << text_of(diagnosis.forward) << " / "
                        << text_of(diagnosis.backward);
  }
}

}  // namespace
}  // namespace ring_attention::diagnose
