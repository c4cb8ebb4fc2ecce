// The tasks: pure functions of (seed, sequence, position), their answers, and what can be known.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "model/bandit.hpp"
#include "model/line_retrieval.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/placement.hpp"

namespace ring_attention::test {
namespace {

using namespace model;  // NOLINT: the folder under test

/// Labels of a sequence by reading its tokens: the value behind the key that stands before `ask`.
std::map<Index, Index> answers_by_reading(const LineRetrieval& task, Index sequence) {
  constexpr Index ask = LineRetrieval::keys + LineRetrieval::values;
  std::map<Index, Index> value_of_key, answers;
  for (Index position = 1; position < task.seq(); ++position) {
    const Index token = task.token(sequence, position), before = task.token(sequence, position - 1);
    if (before >= LineRetrieval::keys) continue;
    if (token == ask)
      answers[position] = value_of_key.at(before);
    else if (token >= LineRetrieval::keys)
      value_of_key[before] = token - LineRetrieval::keys;
  }
  return answers;
}

TEST(LineRetrieval, LabelsAreTheValuesOfTheAskedKeys) {
  for (const Index seq : {4, 5, 6, 64, 65, 256, 1024})
    for (const Index share : {4, 16})
      for (Index sequence = 0; sequence < 3; ++sequence) {
        const LineRetrieval task(7, seq, share);
        std::map<Index, Index> labels;
        for (Index position = 0; position < seq; ++position)
          if (const Index label = task.label(sequence, position); label != Task::none)
            labels[position] = label;
        EXPECT_EQ(labels, answers_by_reading(task, sequence)) << seq;
        EXPECT_EQ(std::ssize(labels), task.queries());
      }
}

TEST(LineRetrieval, TheRecipesNumbers) {
  const LineRetrieval task(1, 1024);
  EXPECT_EQ(task.lines(), 384);
  EXPECT_EQ(task.queries(), 128);
  EXPECT_EQ(task.vocabulary(), 8257);
  EXPECT_EQ(LineRetrieval(1, 1024, 16).lines(), 480);
  for (const Stage& stage : line_retrieval_curriculum()) {
    EXPECT_EQ(stage.seq * stage.batch, 4096);
    EXPECT_EQ(LineRetrieval(1, stage.seq).queries() * stage.batch, 512);
  }
}

TEST(LineRetrieval, KeysDoNotRepeat) {
  const LineRetrieval task(3, 16384, 16);
  for (Index sequence = 0; sequence < 2; ++sequence) {
    std::set<Index> keys;
    for (Index line = 0; line < task.lines(); ++line)
      keys.insert(task.token(sequence, task.value_position(line) - 1));
    EXPECT_EQ(std::ssize(keys), task.lines());
  }
}

TEST(LineRetrieval, WhereTheAnswerIs) {
  const LineRetrieval task(3, 65);
  for (Index position = 0; position < 65; ++position)
    if (const Index label = task.label(2, position); label != Task::none) {
      EXPECT_EQ(task.token(2, task.value_position(task.asked_line(2, position))),
                LineRetrieval::keys + label);
    }
}

TEST(LineRetrieval, ValuesAreUniform) {
  const LineRetrieval task(1, 4096);
  std::vector<int> seen(64);
  for (Index sequence = 0; sequence < 10; ++sequence)
    for (Index line = 0; line < task.lines(); ++line)
      ++seen[static_cast<std::size_t>(task.token(sequence, task.value_position(line)) - LineRetrieval::keys)];
  double chi_square = 0;  // 63 degrees of freedom: above 120 once in 10^5
  for (const int count : seen) chi_square += (count - 240.0) * (count - 240.0) / 240.0;
  EXPECT_LT(chi_square, 120);
}

TEST(LineRetrieval, TooShortAndTooLong) {
  EXPECT_THROW(LineRetrieval(1, 3), InputError);
  EXPECT_THROW(LineRetrieval(1, 65536), InputError);
}

TEST(Tasks, PermutationsAreBijections) {
  for (const int bits : {1, 2, 9, 13})
    for (Index sequence = 0; sequence < 3; ++sequence) {
      std::set<Index> images;
      for (Index x = 0; x < Index{1} << bits; ++x) images.insert(permuted(5, sequence, x, bits));
      EXPECT_EQ(std::ssize(images), Index{1} << bits);
      EXPECT_LT(*images.rbegin(), Index{1} << bits);
    }
}

// The labels of the ranks are the labels of all, and each rank knows the token before each of its tokens.
TEST(Tasks, RanksMakeTheirOwnTokens) {
  const LineRetrieval task(1, 67);
  const Examples all = examples(task, {3, 5}, whole(67));
  for (const PlacementKind kind :
       {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
    const Placement placement(kind, 67, 4);
    Index labels = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const TokenRanges ranges = placement.ranges(rank);
      const Examples own = examples(task, {3, 5}, ranges);
      labels += own.labels();
      const std::vector<Index> where = positions(ranges);
      for (std::size_t i = 0; i < own.token.size(); ++i) {
        const std::size_t token = i % where.size();
        const std::size_t same = i / where.size() * 67 + static_cast<std::size_t>(where[token]);
        EXPECT_EQ(own.token[i], all.token[same]);
        EXPECT_EQ(own.label[i], all.label[same]);
        EXPECT_EQ(own.previous[i], where[token] > 0 ? all.token[same - 1] : Task::none);
      }
    }
    EXPECT_EQ(labels, all.labels());
  }
}

// A mutant: labels are the next tokens, shifted in the memory of a shard. The last token of each range loses its label.
TEST(Tasks, LabelsShiftedInsideAShardAreLost) {
  const auto labels_lost = [](PlacementKind kind, int ranks) {
    Index lost = -1;  // the last token of the sequence has none in any case
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<Index> where = positions(Placement(kind, 64, ranks).ranges(rank));
      for (std::size_t i = 0; i < where.size(); ++i)
        lost += i + 1 < where.size() && where[i + 1] == where[i] + 1 ? 0 : 1;
    }
    return lost;
  };
  EXPECT_EQ(labels_lost(PlacementKind::contiguous, 1), 0);
  EXPECT_EQ(labels_lost(PlacementKind::contiguous, 4), 3);
  EXPECT_EQ(labels_lost(PlacementKind::zigzag, 4), 6);  // rank 3 holds two adjacent slices
  EXPECT_EQ(labels_lost(PlacementKind::striped, 4), 63);
}

// A mutant: the token before is that of the shard's memory. Contiguous shards of even length cut no `key value` and no
// `key ask`, so the accuracy of line retrieval does not show it; in striped shards nearly every token is wrong.
TEST(Tasks, TheTokenBeforeInsideAShardIsWrongAtKeysOnly) {
  const LineRetrieval task(1, 64);
  const auto wrong_behind_a_key = [&](PlacementKind kind) {
    int wrong = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const Examples own = examples(task, {0, 1}, Placement(kind, 64, 4).ranges(rank));
      for (std::size_t i = 0; i < own.token.size(); ++i) {
        const Index inside = i > 0 ? own.token[i - 1] : Task::none;
        wrong += inside != own.previous[i] && own.token[i] >= LineRetrieval::keys ? 1 : 0;
      }
    }
    return wrong;
  };
  EXPECT_EQ(wrong_behind_a_key(PlacementKind::contiguous), 0);
  EXPECT_GT(wrong_behind_a_key(PlacementKind::striped), 24);  // of 32
}

TEST(NeedleBandit, RewardsTellTheNeedle) {
  const NeedleBandit task(1, 512, 16);
  for (Index sequence = 0; sequence < 20; ++sequence) {
    bool seen = false;
    for (Index position = 0; position < 512; position += 2) {
      const bool pays = task.token(sequence, position + 1) == NeedleBandit::all_arms + 1;
      EXPECT_EQ(pays, task.token(sequence, position) == task.needle(sequence));
      seen = seen || pays;
      EXPECT_EQ(task.seen(sequence, position + 2), seen);
    }
  }
}

TEST(NeedleBandit, LabelsOfTrainingAndEvaluation) {
  const Examples training = examples(NeedleBandit(1, 64), {0, 3}, whole(64));
  EXPECT_EQ(training.labels(), 12);
  const NeedleBandit last(1, 64, 512, NeedleBandit::Labels::last);
  EXPECT_EQ(examples(last, {0, 3}, whole(64)).labels(), 3);
  EXPECT_EQ(last.label(2, 63), last.needle(2));
}

TEST(NeedleBandit, TheShareOfNeedlesThatAreSeen) {
  const NeedleBandit task(2, 512);  // 32 trajectories of 8 pulls of one of 512 arms
  int seen = 0;
  for (Index sequence = 0; sequence < 2000; ++sequence) seen += task.seen(sequence, 512) ? 1 : 0;
  EXPECT_NEAR(seen / 2000.0, 1 - std::pow(1 - 1 / 512.0, 32 * 8), 0.044);  // four deviations
}

TEST(NeedleBandit, ArmsInPlay) {
  const NeedleBandit task(1, 1024, 16);
  std::set<Index> arms;
  for (Index position = 0; position < 1024; position += 2) arms.insert(task.token(0, position));
  EXPECT_EQ(std::ssize(arms), 16);
  EXPECT_TRUE(arms.contains(task.needle(0)));
  EXPECT_THROW(NeedleBandit(1, 72), InputError);
  EXPECT_THROW(NeedleBandit(1, 64, 513), InputError);
}

}  // namespace
}  // namespace ring_attention::test
