// The two tasks are learned, by the recipe of adamw.hpp and the curricula of the tasks, on a ring of two threads.

#include <gtest/gtest.h>

#include <memory>

#include "model/bandit.hpp"
#include "model/line_retrieval.hpp"
#include "model/model_runs.hpp"

namespace ring_attention::test {
namespace {

constexpr std::uint64_t evaluation_seed = 999983;

/// Makes the task of a stage.
using MakeTask = std::function<std::unique_ptr<Task>(std::uint64_t seed, const Stage& stage)>;

/// Sequences of one length that a trained model is asked about.
struct Question {
  std::shared_ptr<const Task> task;
  Index sequences;
};

/// The accuracy of each question after a training with this seed.
std::vector<double> accuracies(std::uint64_t seed, const Curriculum& stages, const MakeTask& make,
                               const std::vector<Question>& questions) {
  std::vector<double> found;
  LoopbackWorld world(2, {}, std::chrono::seconds(600));
  world.run([&](int rank) {
    const std::unique_ptr<Task> any = make(seed, stages.front());
    const ModelShape shape{
        .vocabulary = any->vocabulary(), .first_class = any->first_class(), .classes = any->classes()};
    const ModelLinks links = loopback_links(world, rank, {1, 1, 2, 1}, shape);
    const auto place = [&](Index seq, Index batch) {
      return rank_context<float>(links, PlacementKind::zigzag, seq, batch);
    };
    Transformer<float> model(shape, place(stages.front().seq, 1), seed);
    AdamW<float> adam(model.weights());
    Recipe recipe{.steps = 0};
    for (const Stage& stage : stages) recipe.steps += stage.steps;
    Index sequence = 0;
    for (const Stage& stage : stages) {
      model.move_to(place(stage.seq, stage.batch));
      const std::unique_ptr<Task> task = make(seed, stage);
      for (Index step = 0; step < stage.steps; ++step, sequence += stage.batch)
        (void)train_step(model, adam, recipe,
                         examples(*task, {sequence, sequence + stage.batch}, model.rank_context().tokens));
    }
    for (const Question& question : questions) {
      model.move_to(place(question.task->seq(), 1));
      Score score;
      for (Index i = 0; i < question.sequences; ++i) {
        const Score one = model.evaluate(examples(*question.task, {i, i + 1}, model.rank_context().tokens));
        score.correct += one.correct;
        score.labels += one.labels;
      }
      if (rank == 0) found.push_back(score.accuracy());
    }
  });
  return found;
}

// The last length is four times the longest of the training.
TEST(LongTraining, LineRetrievalIsLearnedByEverySeed) {
  const MakeTask lines = [](std::uint64_t seed, const Stage& stage) {
    return std::make_unique<LineRetrieval>(seed, stage.seq);
  };
  std::vector<Question> questions;
  for (const Index seq : {1024, 4096, 16384})
    questions.push_back(
        {std::make_shared<LineRetrieval>(evaluation_seed, seq), std::max<Index>(2, 32768 / seq)});
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const std::vector<double> got = accuracies(seed, line_retrieval_curriculum(), lines, questions);
    std::printf("lines, seed %d: %.4f at 1024, %.4f at 4096, %.4f at 16384\n", static_cast<int>(seed), got[0],
                got[1], got[2]);
    std::fflush(stdout);
    EXPECT_TRUE(got[0] >= 0.995) << "seed " << seed;
    EXPECT_TRUE(got[1] >= 0.99) << "seed " << seed;
    EXPECT_TRUE(got[2] >= 0.97) << "seed " << seed;
  }
}

TEST(LongTraining, TheBanditNamesTheNeedlesThatWereSeen) {
  const MakeTask bandit = [](std::uint64_t seed, const Stage& stage) {
    return std::make_unique<NeedleBandit>(seed, stage.seq, stage.arms);
  };
  std::vector<Question> questions;
  std::vector<double> seen;
  for (const Index trajectories : {32, 128}) {
    const Index seq = trajectories * NeedleBandit::tokens_of_trajectory, sequences = 1024;
    const auto task = std::make_shared<NeedleBandit>(evaluation_seed, seq, NeedleBandit::all_arms,
                                                     NeedleBandit::Labels::last);
    questions.push_back({task, sequences});
    double count = 0;
    for (Index i = 0; i < sequences; ++i) count += task->seen(i, seq) ? 1 : 0;
    seen.push_back(count / static_cast<double>(sequences));
  }
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const std::vector<double> got = accuracies(seed, bandit_curriculum(), bandit, questions);
    std::printf("bandit, seed %d: %.4f of %.4f seen in 32 trajectories, %.4f of %.4f in 128\n",
                static_cast<int>(seed), got[0], seen[0], got[1], seen[1]);
    std::fflush(stdout);
    EXPECT_TRUE(got[0] >= 0.97 * seen[0]) << "seed " << seed;
    EXPECT_TRUE(got[1] >= 0.97 * seen[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ring_attention::test
