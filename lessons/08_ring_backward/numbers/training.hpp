// Lesson 08, NUMBERS.md: the same training with rings that round.
#pragma once

#include <cmath>
#include <numeric>

#include "common/lesson.hpp"
#include "model/adamw.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "rounding.hpp"

namespace ring_attention::lesson_08 {

using namespace model;  // NOLINT: names of the library's model

/// SharedContext of the library, with a device that rounds.
class RoundedAttention : public Attention<float> {
 public:
  RoundedAttention(std::shared_ptr<Links> links, const RankGrid& grid, const Placement& shards,
                   const Kept& kept)
      : links_(std::move(links)), device_(kept), grid_(grid), shards_(shards) {}

  [[nodiscard]] AttentionResult<float> forward(View<const float> q, View<const float> k, View<const float> v,
                                               const Scoring& scoring) override {
    return over_the_ring(q, k, scoring).forward(q, k, v);
  }
  [[nodiscard]] Gradients<float> backward(const BackwardInputs<float>& inputs, View<const float> k,
                                          View<const float> v, const Scoring& scoring) override {
    return over_the_ring(inputs.q, k, scoring).backward(inputs, k, v);
  }

 private:
  [[nodiscard]] ContextParallel<float> over_the_ring(View<const float> q, View<const float> k,
                                                     const Scoring& scoring) {
    return {device_, *links_, {grid_, ring(), shards_, q.shape(), k.shape(), scoring}};
  }

  std::shared_ptr<Links> links_;
  RoundedDevice device_;
  RankGrid grid_;
  Placement shards_;
};

/// Pairs `key value`, then queries `key ask`; the answer is the value of the key. LineRetrieval, with fewer keys and values.
class Recall final : public Task {
 public:
  static constexpr int key_bits = 6;
  static constexpr Index keys = Index{1} << key_bits, values = 16, ask = keys + values;

  /// \param seq  a multiple of 8: S / 4 tokens of queries behind 3 S / 4 of pairs
  Recall(std::uint64_t seed, Index seq) : seed_(seed), seq_(seq) {}

  [[nodiscard]] Index vocabulary() const override { return ask + 1; }
  [[nodiscard]] Index first_class() const override { return keys; }
  [[nodiscard]] Index classes() const override { return values; }
  [[nodiscard]] Index seq() const override { return seq_; }
  [[nodiscard]] Index token(Index sequence, Index position) const override {
    if (position % 2 == 0) return permuted(seed_, sequence, pair_at(sequence, position), key_bits);
    return position < pairs() * 2 ? keys + value(sequence, position / 2) : ask;
  }
  [[nodiscard]] Index label(Index sequence, Index position) const override {
    return position % 2 == 1 && position > pairs() * 2 ? value(sequence, pair_at(sequence, position)) : none;
  }

 private:
  [[nodiscard]] Index pairs() const { return seq_ * 3 / 8; }
  /// The pair that stands at this position, or that the query there asks for.
  [[nodiscard]] Index pair_at(Index sequence, Index position) const {
    const Index place = position / 2;
    return place < pairs()
               ? place
               : static_cast<Index>(hash(seed_, sequence, place, 1) % static_cast<std::uint64_t>(pairs()));
  }
  [[nodiscard]] Index value(Index sequence, Index pair) const {
    return static_cast<Index>(hash(seed_, sequence, pair, 2) % values);
  }

  std::uint64_t seed_;
  Index seq_;
};

/// What is trained: one layer, on a ring of `ranks`.
struct Training {
  int ranks = 8;
  Index seq = 64, batch = 16, steps = 200;

  [[nodiscard]] Recipe recipe() const { return {.warm_up = steps / 8, .steps = steps}; }
  [[nodiscard]] static ModelShape shape() {
    const Recall any(0, 64);
    return {.vocabulary = any.vocabulary(),
            .first_class = any.first_class(),
            .classes = any.classes(),
            .width = 32,
            .heads = 1,
            .kv_heads = 1,
            .hidden = 64};
  }
};

/// One rank of a training.
class Trainee {
 public:
  Trainee(LoopbackWorld& world, int rank, const Training& what, std::uint64_t seed)
      : what_(what),
        task_(seed, what.seq),
        links_(links(world, rank)),
        model_(Training::shape(), place({}), seed),
        adam_(model_.weights()) {}

  /// From here on attention rounds as `kept` says.
  void round(const Kept& kept) { model_.move_to(place(kept)); }

  void train() {
    for (Index step = 0; step < what_.steps; ++step)
      (void)train_step(model_, adam_, what_.recipe(), batch(step));
  }
  /// The mean loss of sequences that no step has seen.
  [[nodiscard]] double loss() {
    double sum = 0, labels = 0;
    for (Index more = 0; more < 4; ++more) {
      const Score score = model_.evaluate(batch(what_.steps + more));
      sum += score.loss;
      labels += score.labels;
    }
    return sum / labels;
  }
  /// The gradient of a batch that no step has seen: what this rank keeps of the gradient of all weights.
  [[nodiscard]] std::vector<float> gradient() {
    (void)model_.differentiate(batch(what_.steps));
    std::vector<float> all;
    for (std::size_t array = 0; array < model_.weights().arrays(); ++array) {
      const std::span<const float> kept = model_.weights().gradients(array);
      all.insert(all.end(), kept.begin(), kept.end());
    }
    return all;
  }

 private:
  [[nodiscard]] ModelLinks links(LoopbackWorld& world, int rank) const {
    const Mesh mesh(rank, world.ranks(), {.ring = world.ranks()});
    return {std::make_shared<PeerLinks>(world.peers(rank), mesh.ulysses(), mesh.ring()), mesh,
            Training::shape()};
  }
  [[nodiscard]] RankContext<float> place(const Kept& kept) const {
    const Placement shards(PlacementKind::zigzag, what_.seq, what_.ranks);
    RankContext<float> place = rank_context<float>(links_, PlacementKind::zigzag, what_.seq, what_.batch);
    place.attention = std::make_shared<RoundedAttention>(links_.links, links_.mesh.grid(), shards, kept);
    return place;
  }
  [[nodiscard]] Examples batch(Index number) const {
    return examples(task_, {number * what_.batch, (number + 1) * what_.batch}, model_.rank_context().tokens);
  }

  Training what_;
  Recall task_;
  ModelLinks links_;
  Transformer<float> model_;
  AdamW<float> adam_;
};

/// The loss after a training that rounds.
inline double trained_loss(const Training& what, const Kept& kept, std::uint64_t seed) {
  double loss = 0;
  LoopbackWorld world(what.ranks);
  world.run([&](int rank) {
    Trainee trainee(world, rank, what, seed);
    trainee.round(kept);
    trainee.train();
    const double own = trainee.loss();  // the same on all ranks
    if (rank == 0) loss = own;
  });
  return loss;
}

/// The relative error of the gradient for each kind of rounding, on the weights that a training in float gives.
inline std::vector<double> gradient_errors(const Training& what, const std::vector<Kept>& kinds,
                                           std::uint64_t seed) {
  const auto ranks = static_cast<std::size_t>(what.ranks);
  std::vector<std::vector<double>> error(kinds.size(), std::vector<double>(ranks));
  std::vector<double> right(ranks);
  LoopbackWorld world(what.ranks);
  world.run([&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    Trainee trainee(world, rank, what, seed);
    trainee.train();
    const std::vector<float> want = trainee.gradient();
    right[r] = std::inner_product(want.begin(), want.end(), want.begin(), 0.0);
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      trainee.round(kinds[kind]);
      const std::vector<float> got = trainee.gradient();
      for (std::size_t i = 0; i < want.size(); ++i) error[kind][r] += std::pow(got[i] - want[i], 2);
    }
  });
  const auto sum = [](const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0);
  };
  std::vector<double> relative;
  for (const std::vector<double>& of_ranks : error) relative.push_back(std::sqrt(sum(of_ranks) / sum(right)));
  return relative;
}

}  // namespace ring_attention::lesson_08
