/// \file
/// `Transformer`: the whole model on a rank of a mesh, forward and backward.
#pragma once

#include "model/embedding.hpp"
#include "model/layer.hpp"
#include "model/weights.hpp"

namespace ring_attention::model {

/// All ranks of the mesh make the same calls.
///
/// Memory of a rank besides its weights: for each layer x, out and lse of its tokens; the activations of one layer; the
/// weights and gradients of one layer.
template <class T>
class Transformer {
 public:
  /// \param place  of this rank. Its lines stay; its tokens and its attention are those of move_to()
  Transformer(const ModelShape& shape, RankContext<T> place, std::uint64_t seed,
              Sharding sharding = Sharding::none);

  /// Sequences of another length, or another way to attend, with the same lines.
  void move_to(RankContext<T> place);

  /// The scores of the next calls, of all heads: causal, scale 1 / sqrt(dim) at first. Its dropout is that of
  /// differentiate(); evaluate() drops nothing. The model fills in layer and batch.
  [[nodiscard]] Scoring& scoring() { return scoring_; }
  /// Rows of the feed-forward part at a time.
  void set_chunk(Index rows) { chunk_ = rows; }

  [[nodiscard]] const ModelShape& shape() const { return shape_; }
  [[nodiscard]] const RankContext<T>& rank_context() const { return place_; }
  [[nodiscard]] Weights<T>& weights() { return weights_; }

  /// The labels of all ranks that have other tokens or sequences.
  [[nodiscard]] double labels_of_all(const Examples& own) const;
  /// The score of the tokens of all ranks.
  /// \param own  the tokens place().tokens of this rank's sequences
  [[nodiscard]] Score evaluate(const Examples& own);
  /// The score as evaluate() returns it; leaves the gradients of loss / `labels` in weights(), summed over the ranks.
  [[nodiscard]] Score differentiate(const Examples& own, double labels);
  [[nodiscard]] Score differentiate(const Examples& own) { return differentiate(own, labels_of_all(own)); }

 private:
  [[nodiscard]] LayerOptions layer_options(std::size_t layer, bool drops) const;
  [[nodiscard]] std::size_t layers() const { return static_cast<std::size_t>(shape_.layers); }
  [[nodiscard]] Tensor<T> embedded(const Examples& own);
  /// Through all layers; `keep` makes checkpoints for the backward.
  [[nodiscard]] Tensor<T> through_layers(Tensor<T> x, std::vector<Checkpoint<T>>* keep);
  [[nodiscard]] Tensor<T> back_through_layers(Tensor<T> grad, std::vector<Checkpoint<T>>& kept);
  [[nodiscard]] Score over_replicas(const Score& own) const;
  /// Adds up what the ranks with the same K,V heads have.
  void sum_kv_replicas(const ParameterLayout& layout, std::span<T> gradient) const;

  ModelShape shape_;
  RankContext<T> place_;
  TensorPart part_;
  Weights<T> weights_;
  Scoring scoring_;
  Index chunk_ = 256;
};

}  // namespace ring_attention::model
