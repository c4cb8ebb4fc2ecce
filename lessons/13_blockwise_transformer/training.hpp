// Lesson 13, beside the idea: line retrieval, trained by the library with a ring over all ranks, and asked with less in
// sight.
#pragma once

#include "common/lesson.hpp"
#include "mesh_links.hpp"
#include "model/adamw.hpp"
#include "model/line_retrieval.hpp"
#include "ring_attention/core/allocation.hpp"

namespace ring_attention::lesson_13 {

constexpr std::uint64_t evaluation_seed = 999983;  // no sequence of a training
constexpr Index query_share = 16;                  // 1/16 of the tokens are queries when the model is asked

/// One column a stage, one row a step.
struct Curves {
  std::vector<Index> lengths;  // S of each step
  std::vector<double> loss, accuracy, seconds;
};

class Trainee {
 public:
  /// \param rotary  columns of a head that turn with the position
  Trainee(const Communicator& comm, std::uint64_t seed, Index rotary)
      : comm_(comm),
        seed_(seed),
        shape_(shape_with(rotary)),
        links_(links_over(comm, {1, 1, comm.size(), 1}, shape_)),
        model_(shape_, place(64, 1), seed) {}

  [[nodiscard]] const ModelShape& shape() const { return shape_; }

  [[nodiscard]] Curves train(const Curriculum& stages) {
    allocation::keep_freed();
    Curves curves;
    Recipe recipe{.steps = 0};
    for (const Stage& stage : stages) recipe.steps += stage.steps;
    AdamW<float> adam(model_.weights());
    Index sequence = 0;
    for (const Stage& stage : stages) {
      model_.move_to(place(stage.seq, stage.batch));
      const LineRetrieval task(seed_, stage.seq);
      for (Index step = 0; step < stage.steps; ++step, sequence += stage.batch) {
        const double begin = MPI_Wtime();
        const Score score =
            train_step(model_, adam, recipe,
                       examples(task, {sequence, sequence + stage.batch}, model_.rank_context().tokens))
                .score;
        curves.lengths.push_back(stage.seq);
        curves.loss.push_back(score.mean_loss());
        curves.accuracy.push_back(score.accuracy());
        curves.seconds.push_back(max_over_ranks(comm_, MPI_Wtime() - begin));
      }
    }
    return curves;
  }

  /// What to change before a rank answers: its examples, its place.
  using Change = std::function<void(Examples&, RankContext<float>&)>;

  /// The accuracy on sequences 0, 1, ... until there are `labels` answers.
  [[nodiscard]] double accuracy(Index seq, Index labels, const Mask& mask = Mask::causal(),
                                PlacementKind kind = PlacementKind::zigzag, const Change& change = {}) {
    const LineRetrieval task(evaluation_seed, seq, query_share);
    const Index sequences = sequences_of(task, labels), batch = std::max<Index>(1, 16384 / seq);
    Score all;
    for (Index first = 0; first < sequences; first += batch) {
      const Index count = std::min(batch, sequences - first);
      RankContext<float> where = place(seq, count, kind);
      Examples own = examples(task, {first, first + count}, where.tokens);
      if (change) change(own, where);
      model_.move_to(std::move(where));
      model_.scoring().mask = mask;
      const Score score = model_.evaluate(own);
      all.correct += score.correct;
      all.labels += score.labels;
    }
    model_.scoring().mask = Mask::causal();
    return all.accuracy();
  }

  /// The share of those answers whose line is in sight, counted.
  [[nodiscard]] static double share_in_sight(Index seq, Index labels, const Mask& mask) {
    const LineRetrieval task(evaluation_seed, seq, query_share);
    double asked = 0, in_sight = 0;
    for (Index sequence = 0; sequence < sequences_of(task, labels); ++sequence)
      for (Index position = seq - 2 * task.queries() + 1; position < seq; position += 2) {
        const Index value = task.value_position(task.asked_line(sequence, position));
        asked += 1;
        in_sight += mask.allowed(position, value) ? 1 : 0;
      }
    return in_sight / asked;
  }

 private:
  static ModelShape shape_with(Index rotary) {
    const LineRetrieval any(0, 64);
    return {.vocabulary = any.vocabulary(),
            .first_class = any.first_class(),
            .classes = any.classes(),
            .rotary = rotary,
            .theta = 1e6};
  }
  static Index sequences_of(const LineRetrieval& task, Index labels) {
    return (labels + task.queries() - 1) / task.queries();
  }
  [[nodiscard]] RankContext<float> place(Index seq, Index batch,
                                         PlacementKind kind = PlacementKind::zigzag) const {
    return rank_context<float>(links_, kind, seq, batch);
  }

  const Communicator& comm_;
  std::uint64_t seed_;
  ModelShape shape_;
  ModelLinks links_;
  Transformer<float> model_;
};

}  // namespace ring_attention::lesson_13
