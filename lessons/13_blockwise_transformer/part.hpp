// Lesson 13, beside the idea: a small model with the idea's layer, on one rank of a mesh, right or with a mistake; the
// same model of the library in one process.
#pragma once

#include LESSON_IDEA

#include "mistakes.hpp"
#include "model/transformer.hpp"
#include "ring_attention/core/random.hpp"

namespace ring_attention::lesson_13 {

using namespace model;  // NOLINT: names of the library's model

/// Random tokens; about two of three have a label, the last has none.
class RandomTask final : public Task {
 public:
  RandomTask(std::uint64_t seed, Index seq) : seed_(seed), seq_(seq) {}
  [[nodiscard]] Index vocabulary() const override { return 23; }
  [[nodiscard]] Index first_class() const override { return 7; }
  [[nodiscard]] Index classes() const override { return 5; }
  [[nodiscard]] Index seq() const override { return seq_; }
  [[nodiscard]] Index token(Index sequence, Index position) const override {
    return static_cast<Index>(hash(seed_, sequence, position, 1) % 23);
  }
  [[nodiscard]] Index label(Index sequence, Index position) const override {
    const auto number = hash(seed_, sequence, position, 2);
    return number % 3 != 0 && position + 1 < seq_ ? static_cast<Index>(number / 3 % 5) : none;
  }

 private:
  std::uint64_t seed_;
  Index seq_;
};

/// What is trained: one layer, 4 query heads, 2 KV heads, rotary positions; two steps of gradient descent.
struct Setup {
  ModelShape shape{.vocabulary = 23,
                   .first_class = 7,
                   .classes = 5,
                   .width = 12,
                   .heads = 4,
                   .kv_heads = 2,
                   .dim = 4,
                   .hidden = 17,
                   .rotary = 2,
                   .theta = 10};
  Index seq = 19, batch = 1;
  std::uint64_t seed = 1;
  PlacementKind kind = PlacementKind::contiguous;
  static constexpr int steps = 2;
  static constexpr double rate = 0.3;

  [[nodiscard]] RandomTask task() const { return {seed, seq}; }
};

/// Of a rank: its parts of the matrices, with their names and places.
struct Result {
  std::vector<double> losses;  // before each step, mean of all labels
  double labels = 0;           // of all ranks
  std::vector<ParameterLayout> layouts;
  std::vector<Tensor<double>> gradients, weights;  // of the first step, after the last
};

inline void descend(Weights<double>& weights) {
  for (std::size_t array = 0; array < weights.arrays(); ++array)
    for (std::size_t i = 0; i < weights.values(array).size(); ++i)
      weights.values(array)[i] -= Setup::rate * weights.gradients(array)[i];
}

/// The model of one rank, with FSDP. Array 0 of its weights is the layer, array 1 the embedding.
class RankShare {
 public:
  RankShare(const ModelLinks& links, const Setup& setup, Mistake mistake)
      : setup_(setup),
        mistake_(mistake),
        ranks_(links.replicas),
        place_(place_with(links, setup, mistake)),
        own_(examples(setup.task(), links.mesh.sequences(setup.batch), place_.tokens)),
        weights_(layouts(setup.shape, links.part), place_.replicas, Sharding::fsdp) {
    for (std::size_t array = 0; array < weights_.arrays(); ++array)
      initialise(weights_.layout(array), setup.seed, static_cast<Index>(array), weights_.kept(array),
                 weights_.values(array));
    if (mistake == "shifted-tokens") own_.previous = shifted(own_.token, 1);
    if (mistake == "shifted-labels") shift_labels();
    if (mistake == "local-rotary") place_.tokens = whole(count(place_.tokens));
  }

  [[nodiscard]] Result train() {
    Result outcome;
    outcome.labels = all_reduce(*ranks_, static_cast<double>(own_.labels()));
    outcome.layouts = weights_.layouts();
    for (int step = 0; step < Setup::steps; ++step) {
      outcome.losses.push_back(differentiate(outcome.labels));
      for (std::size_t array = 0; step == 0 && array < weights_.arrays(); ++array)
        outcome.gradients.push_back(gathered(weights_.gradients(array), array));
      descend(weights_);
    }
    for (std::size_t array = 0; array < weights_.arrays(); ++array)
      outcome.weights.push_back(gathered(weights_.values(array), array));
    return outcome;
  }

 private:
  static RankContext<double> place_with(const ModelLinks& links, const Setup& setup, Mistake mistake) {
    RankContext<double> place = rank_context<double>(links, setup.kind, setup.seq, setup.batch);
    if (mistake == "data-ranks-only") place.replicas = links.links->group(links.mesh.data());
    return place;
  }

  /// What is `back` places before in the memory of the shard, none outside of it.
  [[nodiscard]] std::vector<Index> shifted(const std::vector<Index>& of, Index back) const {
    std::vector<Index> result(of.size(), Task::none);
    for (Index row = 0; row < std::ssize(of); ++row)
      if (const Index from = row % own_.tokens - back; from >= 0 && from < own_.tokens)
        result[static_cast<std::size_t>(row)] = of[static_cast<std::size_t>(row - back)];
    return result;
  }
  /// The label of a token belongs to its next one, and the shard's memory moves by one.
  void shift_labels() {
    std::vector<Index> answers;
    const RandomTask task = setup_.task();
    for (Index which = 0; which < own_.sequences; ++which)
      for (const Index position : positions(place_.tokens))
        answers.push_back(position > 0 ? task.label(place_.first_sequence + which, position - 1)
                                       : Task::none);
    own_.label = shifted(answers, -1);
  }

  /// One sequence of this rank.
  [[nodiscard]] Examples sequence(Index which) const {
    const auto of = [&](const std::vector<Index>& all) {
      return std::vector<Index>(all.begin() + which * own_.tokens, all.begin() + (which + 1) * own_.tokens);
    };
    return {1, own_.tokens, of(own_.token), of(own_.previous), of(own_.label)};
  }

  /// All numbers of an array, of which each rank has a piece.
  [[nodiscard]] Tensor<double> gathered(std::span<const double> piece, std::size_t array) const {
    Tensor<double> all({1, 1, 1, weights_.layout(array).size()});
    all_gather(*place_.replicas, piece, all.view().elements());
    return all;
  }
  /// The parameters of an array: gathered before they are used. The mistake: once.
  [[nodiscard]] std::span<const double> parameters(std::size_t array) {
    Whole<double>& used = used_.at(array);
    if (mistake_ != "stale-weights" || used.values.empty()) used = weights_.whole(array);
    return used.values;
  }

  /// Leaves the summed gradients in the weights.
  /// \param labels  of all ranks
  /// \returns the mean loss
  double differentiate(double labels) {
    const ParameterLayout &of_layer = weights_.layout(0), &of_ends = weights_.layout(1);
    Tensor<double> layer_gradient({1, 1, 1, of_layer.size()}), ends_gradient({1, 1, 1, of_ends.size()});
    const lesson::LayerGradients gradients(of_layer, layer_gradient.view().elements());
    const EmbeddingParameters<double> of_embedding(of_ends, ends_gradient.view().elements());
    const EmbeddingParameters<const double> embedding(of_ends, parameters(1));
    const Scoring scoring{1 / std::sqrt(static_cast<double>(setup_.shape.dim)), Mask::causal()};
    const lesson::Layer layer{setup_.shape, place_, {of_layer, parameters(0)}, scoring, 5};
    if (mistake_ == "mean-of-means")
      labels = std::max(1.0, static_cast<double>(own_.labels())) * ranks_->size();
    double loss = 0;
    for (Index which = 0; which < own_.sequences; ++which) {
      const Examples one = sequence(which);
      lesson::Kept kept;
      const Tensor<double> x = embed(setup_.shape, embedding.embedding, one);
      const lesson::Rows z = lesson::forward(layer, lesson::matrix(x.view()), kept);
      lesson::Rows dz(z.rows(), z.cols());
      loss += answer_gradient<double>(setup_.shape, embedding, one, lesson::view(z), labels,
                                      of_embedding.embedding, of_embedding.norm, lesson::view(dz))
                  .loss;
      const lesson::Rows dx = lesson::backward(layer, kept, dz, gradients);
      add_embedding_gradient<double>(setup_.shape, one, lesson::view(dx), of_embedding.embedding);
    }
    if (mistake_ == "norm-twice")
      for (const View<double>& gain : {gradients.norm_1, gradients.norm_2})
        all_reduce(*place_.tensor, gain.elements());
    lesson::sum_gradients(place_, gradients, layer_gradient.view().elements(), weights_.gradients(0));
    weights_.reduce(1, ends_gradient.view().elements());
    return all_reduce(*ranks_, loss / labels);
  }

  Setup setup_;
  Mistake mistake_;
  Group ranks_;  // all that have other tokens or sequences
  RankContext<double> place_;
  Examples own_;
  Weights<double> weights_;
  std::array<Whole<double>, 2> used_;
};

/// The library's model in one process, without ranks and FSDP.
inline Result in_one_process(const Setup& setup) {
  Result outcome;
  Transformer<double> model(setup.shape, one_process<double>(setup.seq), setup.seed);
  const Examples all = examples(setup.task(), {0, setup.batch}, whole(setup.seq));
  const auto copy = [](std::span<const double> values) {
    Tensor<double> array({1, 1, 1, std::ssize(values)});
    std::ranges::copy(values, array.data());
    return array;
  };
  Weights<double>& weights = model.weights();
  for (int step = 0; step < Setup::steps; ++step) {
    const Score score = model.differentiate(all);
    outcome.losses.push_back(score.mean_loss());
    outcome.labels = score.labels;
    for (std::size_t array = 0; step == 0 && array < weights.arrays(); ++array)
      outcome.gradients.push_back(copy(weights.gradients(array)));
    descend(weights);
  }
  for (std::size_t array = 0; array < weights.arrays(); ++array)
    outcome.weights.push_back(copy(weights.values(array)));
  outcome.layouts = weights.layouts();
  return outcome;
}

/// The largest ||got - want|| / ||want|| of a matrix of this rank; infinite where something is not finite.
inline double matrix_error(const Result& got, const Result& want,
                           std::vector<Tensor<double>> Result::* which) {
  double largest = 0;
  for (std::size_t array = 0; array < got.layouts.size(); ++array)
    for (const Parameter& part : got.layouts[array].parameters()) {
      const View<const double> own = got.layouts[array].view(
                                   std::span<const double>((got.*which)[array].view().elements()), part.name),
                               all = want.layouts[array].view(
                                   std::span<const double>((want.*which)[array].view().elements()),
                                   part.name);
      const auto block =
          lesson::matrix(all).block(part.rows.begin, part.columns.begin, own.shape().seq, own.shape().dim);
      const double error = (lesson::matrix(own) - block).norm() / block.norm();
      if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
      largest = std::max(largest, error);
    }
  return largest;
}

}  // namespace ring_attention::lesson_13
