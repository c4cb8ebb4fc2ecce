// The lengths, steps, mesh and questions that the flags of `ring-attention train` mean together.
#include "program/train/options.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "program/train/evaluation.hpp"

namespace ring_attention::test {
namespace {

/// `64 x 64 200, ...`: length x sequences steps.
std::string words_of(const TrainOptions& options) {
  std::string words;
  for (const model::Stage& stage : options.curriculum())
    words += (words.empty() ? "" : ", ") + std::to_string(stage.seq) + " x " + std::to_string(stage.batch) +
             " " + std::to_string(stage.steps) + (stage.arms > 0 ? " of " + std::to_string(stage.arms) : "");
  return words;
}

std::string words_of(const std::string& task, Index seq, std::optional<Index> steps = {}) {
  TrainOptions options;
  options.task = task;
  options.seq = seq;
  options.steps = steps;
  return words_of(options);
}

TEST(TrainOptions, TheDefaultIsTheRecipe) {
  EXPECT_EQ(words_of(TrainOptions{}), "64 x 64 200, 256 x 16 100, 1024 x 4 60, 4096 x 1 40");
  EXPECT_EQ(words_of("bandit", 4096),
            "64 x 64 200 of 16, 256 x 16 100 of 64, 1024 x 4 60 of 256, 4096 x 1 40 of 512");
  EXPECT_NO_THROW(validate(TrainOptions{}));
  const model::Recipe recipe = TrainOptions{}.recipe(), want;
  EXPECT_EQ(std::tuple(recipe.rate, recipe.last_rate, recipe.steps, recipe.warm_up),
            std::tuple(want.rate, want.last_rate, Index{400}, want.warm_up));
}

TEST(TrainOptions, ShorterAndLongerSequences) {
  EXPECT_EQ(words_of("lines", 64), "64 x 64 200");
  EXPECT_EQ(words_of("lines", 48), "48 x 85 200");
  EXPECT_EQ(words_of("lines", 1000), "64 x 64 200, 256 x 16 100, 1000 x 4 60");
  EXPECT_EQ(words_of("lines", 16384), "64 x 64 200, 256 x 16 100, 1024 x 4 60, 4096 x 1 40, 16384 x 1 40");
  EXPECT_EQ(words_of("bandit", 128), "64 x 64 200 of 16, 128 x 32 100 of 64");
}

TEST(TrainOptions, StepsAreSharedOut) {
  EXPECT_EQ(words_of("lines", 64, 150), "64 x 64 150");
  EXPECT_EQ(words_of("lines", 4096, 40), "64 x 64 20, 256 x 16 10, 1024 x 4 6, 4096 x 1 4");
  EXPECT_EQ(words_of("lines", 4096, 3), "64 x 64 1, 256 x 16 1, 4096 x 1 1");
  EXPECT_EQ(words_of("lines", 4096, 1), "4096 x 1 1");
}

/// The mesh, and the axis that took the rest.
std::string mesh_words(TrainOptions options, int ranks) {
  options.seq = 64;
  options.heads = 8;
  const ChosenMesh mesh = mesh_of(options, ranks);
  EXPECT_EQ(mesh.shape.ranks(), ranks);
  return to_string(mesh.shape) + "; " + mesh.rest;
}

TEST(TrainOptions, AnAxisThatIsNotGivenTakesTheRest) {
  EXPECT_EQ(mesh_words({}, 6), "tensor 1, ulysses 1, ring 6, data 1; ring");
  TrainOptions options;
  options.tensor = 2;
  EXPECT_EQ(mesh_words(options, 8), "tensor 2, ulysses 1, ring 4, data 1; ring");
  options.ring = 1;
  EXPECT_EQ(mesh_words(options, 8), "tensor 2, ulysses 1, ring 1, data 4; data");
  options.data = 2;
  EXPECT_EQ(mesh_words(options, 8), "tensor 2, ulysses 2, ring 1, data 2; ulysses");
  options.tensor.reset();
  options.ulysses = 1;
  EXPECT_EQ(mesh_words(options, 8), "tensor 4, ulysses 1, ring 1, data 2; tensor");
  options.tensor = 4;
  EXPECT_EQ(mesh_words(options, 8), "tensor 4, ulysses 1, ring 1, data 2; ");
}

TEST(TrainOptions, WhatAWindowShows) {
  TrainOptions options;
  const EvaluationSet lines = make_evaluation_set(options, {.seq = 1024, .batch = 4, .steps = 1});
  EXPECT_EQ(labels(lines, 3), 3 * 1024 / 32);
  EXPECT_EQ(possible_accuracy(lines, 16, 1024), 1);
  EXPECT_NEAR(possible_accuracy(lines, 16, 256), 0.2417,
              0.04);  // (W/S - 1/32) / (15/16) of the lines, and guesses
  const EvaluationSet one = make_evaluation_set(options, {.seq = 32, .batch = 1, .steps = 1});
  Index tokens = 1;  // of the shortest window with the answer of the only label
  while (!one.shows(0, 31, 32 - tokens)) ++tokens;
  EXPECT_EQ(possible_accuracy(one, 1, tokens), 1);
  EXPECT_LT(possible_accuracy(one, 1, tokens - 1), 0.5);
  options.task = "bandit";
  const EvaluationSet bandit =
      make_evaluation_set(options, {.seq = 1024, .batch = 4, .steps = 1, .arms = 512});
  EXPECT_EQ(labels(bandit, 3), 3 * 1024 / 16);
  EXPECT_LT(possible_accuracy(bandit, 64, 256), possible_accuracy(bandit, 64, 1024));
  // The answer is shown by the reward of a pull, and only by this.
  EXPECT_NEAR(possible_accuracy(bandit, 64, 16), 8.0 / 512 + 1.0 / 512, 0.01);
}

// What the model has learned by heart does not count, and --seed reaches the sequences.
TEST(TrainOptions, TheEvaluationAndAnotherSeedHaveOtherSequences) {
  for (const char* task : {"lines", "bandit"}) {
    TrainOptions options, other;
    options.task = other.task = task;
    other.seed = 2;
    const model::Stage stage{.seq = 1024, .batch = 4, .steps = 1, .arms = 512};
    const auto training = options.training_task(stage), of_another_seed = other.training_task(stage);
    const EvaluationSet set = make_evaluation_set(options, stage),
                        other_set = make_evaluation_set(other, stage);
    using Pair = std::pair<const model::Task*, const model::Task*>;
    for (const auto& [one, that] :
         {Pair(training.get(), set.task.get()), Pair(training.get(), of_another_seed.get()),
          Pair(set.task.get(), other_set.task.get())})
      for (Index sequence = 0; sequence < 3; ++sequence) {
        Index same = 0;
        for (Index at = 0; at < stage.seq; ++at)
          same += one->token(sequence, at) == that->token(sequence, at) ? 1 : 0;
        EXPECT_LT(same, stage.seq * 3 / 4) << task << ", sequence " << sequence;
      }
  }
}

}  // namespace
}  // namespace ring_attention::test
