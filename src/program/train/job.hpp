/// \file
/// One `ring-attention train`: the steps, the checkpoints, and what the model answers in the end.
#pragma once

#include <chrono>
#include <cstdio>

#include "model/transformer.hpp"
#include "program/cpu_backend.hpp"
#include "program/train/evaluation.hpp"
#include "program/train/report.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {

/// Every function is collective. \tparam T  of all numbers
template <class T>
class TrainJob {
 public:
  /// \param mesh  mesh_of(options, comm.size())  \param trace  of one step; null: none
  TrainJob(const Communicator& comm, const TrainOptions& options, const ChosenMesh& mesh, Activity& activity,
           Trace* trace)
      : comm_(comm),
        options_(options),
        activity_(activity),
        trace_(trace),
        mesh_(comm.rank(), comm.size(), mesh.shape),
        observers_(activity, trace, grid_of_job()),
        links_(std::make_shared<MpiLinks>(comm, mesh_.ulysses(), mesh_.ring()), mesh_, options.shape(),
               observers_.all()) {
    if (trace_ != nullptr) trace_->pause(true);
    report_.ranks = comm.size();
    report_.mesh = mesh;
    report_.cpu = cpu_options(comm, options);
    report_.cpu.same_bits = options.tile_of_same_bits();
    for (const model::ParameterLayout& layout :
         model::layouts(options.shape(), model::TensorPart(options.shape(), 0, 1)))
      report_.parameters += layout.size();
    require_memory();
    const model::Stage first = options.curriculum().front();
    model_.emplace(options.shape(), rank_context(first.seq, first.batch),
                   static_cast<std::uint64_t>(options.seed),
                   options.fsdp ? model::Sharding::fsdp : model::Sharding::none);
    adam_.emplace(model_->weights());
  }

  int operator()() {
    activity_.enter(Phase::read);
    if (!options_.checkpoint.empty()) {
      checkpoints_.emplace(comm_, options_);
      if (!checkpoints_->last().empty()) resume();
    }
    print(heading(report_, options_));
    allocation::reset_peak();
    train();
    report_.tensor_bytes = -min_over_ranks(comm_, -allocation::peak());
    evaluate();
    if (checkpoints_) report_.checkpoint = checkpoints_->last();
    print(to_text(report_));
    if (options_.json && comm_.rank() == 0) std::fputs(to_json(report_, options_).c_str(), stdout);
    return 0;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  void print(const std::string& text) const {
    if (comm_.rank() != 0 || options_.json) return;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  /// Parameters, gradients and two moments of what the rank keeps; weights and gradients of one array while it is used, as
  /// exact sums four words a number, twice; the rows of its tokens: those that each layer keeps, and those of a layer that
  /// computes; with exact sums the feed-forward part of a tile.
  void require_memory() const {
    const model::ModelShape shape = options_.shape();
    const MeshShape& mesh = report_.mesh.shape;
    Index all = 0, largest = 0, rows = 0, tile = 0;
    for (const model::ParameterLayout& layout : model::layouts(shape, links_.part)) {
      all += layout.size();
      largest = std::max(largest, layout.size());
    }
    for (const model::Stage& stage : options_.curriculum()) {
      const Index tokens =
          model::shards_of(mesh_, PlacementKind::zigzag, stage.seq, report_.cpu).max_tokens();
      rows = std::max(rows, (stage.batch / mesh.data + 1) * (tokens / mesh.ulysses + 1));
      if (options_.same_bits)
        tile =
            std::max(tile, std::min(options_.tile_of_same_bits(), tokens) * (shape.width + 2 * shape.hidden));
    }
    const Index kept = options_.fsdp ? all / links_.replicas->size() : all,
                row = shape.width + shape.heads / mesh.tensor * (shape.dim + 1);
    require_host_memory(
        comm_, static_cast<Index>(sizeof(T)) * (4 * kept + (options_.same_bits ? 10 : 2) * largest + tile +
                                                (shape.layers + 6) * row * rows));
  }

  [[nodiscard]] RankGrid grid_of_job() const {
    RankGrid grid = mesh_.grid();
    grid.rank = mesh_.rank();
    grid.ulysses = mesh_.ulysses();
    grid.ring = mesh_.ring();
    return grid;
  }
  [[nodiscard]] model::RankContext<T> rank_context(Index seq, Index batch) const {
    return model::rank_context<T>(links_, PlacementKind::zigzag, seq, batch, model::ContextKind::hybrid,
                                  report_.cpu);
  }
  /// This rank's tokens of the sequences from the `first` on.
  [[nodiscard]] model::Examples own(const model::Task& task, Index first, Index batch) const {
    const Interval sequences = mesh_.sequences(batch);
    return model::examples(task, {first + sequences.begin, first + sequences.end},
                           model_->rank_context().tokens);
  }

  void resume() {
    report_.curve = checkpoints_->load(*model_, *adam_);
    report_.first_step = adam_->steps();
    report_.resumed_from = checkpoints_->last();
  }

  void train() {
    const Clock::time_point begin = Clock::now();
    const model::Recipe recipe = options_.recipe();
    Index step = 0, sequence = 0;
    for (const model::Stage& stage : options_.curriculum()) {
      model_->move_to(rank_context(stage.seq, stage.batch));
      const std::unique_ptr<model::Task> task = options_.training_task(stage);
      for (Index i = 0; i < stage.steps; ++i, ++step, sequence += stage.batch) {
        if (step < report_.first_step) continue;
        activity_.enter(Phase::compute, static_cast<int>(step));
        const Index second = std::min(report_.first_step + 1, recipe.steps - 1);
        if (trace_ != nullptr) trace_->pause(step != second);
        const model::StepReport done = make_step(recipe, own(*task, sequence, stage.batch));
        if (trace_ != nullptr) trace_->pause(true);
        report_.curve.push_back({step, stage.seq, done.score.mean_loss(), done.score.accuracy()});
        report_.tokens += stage.seq * stage.batch;
        const bool last = step + 1 == recipe.steps;
        if (step % std::max<Index>(1, recipe.steps / 20) == 0 || last)
          print(line_of(report_.curve.back(), seconds_since(begin)));
        if (checkpoints_ && ((step + 1) % options_.checkpoint_every == 0 || last)) save();
      }
    }
    report_.train_seconds = seconds_since(begin);
  }

  model::StepReport make_step(const model::Recipe& recipe, const model::Examples& examples) {
    try {
      return train_step(*model_, *adam_, recipe, examples);
    } catch (const AgreedError& error) {
      throw AgreedError(error.what() + (checkpoints_ ? checkpoints_->what_stays() : ""));
    }
  }

  void save() {
    activity_.enter(Phase::write);
    checkpoints_->save(*model_, *adam_, report_.curve);
  }

  /// All lengths of the training, and one four times as long; none that is longer than longest_evaluation.
  void evaluate() {
    const Clock::time_point begin = Clock::now();
    model::Curriculum stages = options_.curriculum();
    stages.push_back(stages.back());
    stages.back().seq *= 4;
    std::erase_if(stages, [](const model::Stage& stage) { return stage.seq > longest_evaluation; });
    for (const model::Stage& stage : stages) {
      const EvaluationSet set = make_evaluation_set(options_, stage);
      const Index tokens = options_.evaluation_tokens,
                  batch = std::max<Index>(report_.mesh.shape.data, std::min<Index>(4096, tokens) / stage.seq),
                  sequences = batch * std::max<Index>(1, tokens / (stage.seq * batch));
      model_->move_to(rank_context(stage.seq, batch));
      const Index window = std::max<Index>(1, stage.seq / 4);
      const auto answers = [&](Index seen) {
        return Answers{accuracy(*set.task, sequences, batch, seen), possible_accuracy(set, sequences, seen)};
      };
      report_.evaluations.push_back(
          {stage.seq, labels(set, sequences), window, answers(stage.seq), answers(window)});
    }
    report_.evaluate_seconds = seconds_since(begin);
  }

  [[nodiscard]] double accuracy(const model::Task& task, Index sequences, Index batch, Index window) {
    model_->scoring().mask.left = window - 1;
    model::Score score;
    for (Index first = 0; first < sequences; first += batch) {
      activity_.enter(Phase::check);
      const model::Score of_batch = model_->evaluate(own(task, first, batch));
      score.labels += of_batch.labels;
      score.correct += of_batch.correct;
    }
    return score.accuracy();
  }

  const Communicator& comm_;
  const TrainOptions& options_;
  Activity& activity_;
  Trace* trace_;
  Mesh mesh_;
  CommandObservers observers_;
  model::ModelLinks links_;
  std::optional<model::Transformer<T>> model_;
  std::optional<model::AdamW<T>> adam_;
  std::optional<Checkpoints> checkpoints_;
  TrainReport report_;
};

}  // namespace ring_attention
