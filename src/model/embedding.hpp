/// \file
/// The two ends of the model: tokens to rows, and rows to answers and their loss, with one matrix E for both (tied).
#pragma once

#include "model/gradient_sum.hpp"
#include "model/task.hpp"

namespace ring_attention::model {

/// E and the gain of the last norm.
template <class T>
struct EmbeddingParameters {
  EmbeddingParameters(const ParameterLayout& layout, std::span<T> flat)
      : embedding(layout.view(flat, "embedding")), norm(layout.view(flat, "norm")) {}

  View<T> embedding;  ///< `[1, 1, vocabulary, width]`
  View<T> norm;       ///< `[1, 1, 1, width]`
};

/// Sums over labelled tokens.
struct Score {
  double loss = 0;  ///< -log p of the label, natural logarithm
  double labels = 0, correct = 0;

  [[nodiscard]] double mean_loss() const { return loss / labels; }
  [[nodiscard]] double accuracy() const { return correct / labels; }
};

/// x[t] = E[token t]; with the token shift its second half is that of E[token t - 1], 0 at position 0.
/// \returns `[sequences, 1, tokens, width]`
template <class T>
[[nodiscard]] Tensor<T> embed(const ModelShape& shape, View<const T> embedding, const Examples& examples);
/// Adds to dE.
template <class T>
void add_embedding_gradient(const ModelShape& shape, const Examples& examples, View<const T> grad_x,
                            const GradientSum<T>& grad_embedding, const RowTiles& tiles = {});

/// The score of the labelled tokens of this rank.
/// \param x  `[sequences, 1, tokens, width]`, what the layers returned
template <class T>
[[nodiscard]] Score answer(const ModelShape& shape, const EmbeddingParameters<const T>& weights,
                           const Examples& examples, View<const T> x, const RowTiles& tiles = {});
/// The score as answer() returns it, and the gradient of loss / `labels_of_all`.
/// \param labels_of_all  the number of labels on all ranks: a mean of the ranks' means is another function
/// \param grad_embedding, grad_norm  added to
/// \param grad_x  written
template <class T>
[[nodiscard]] Score answer_gradient(const ModelShape& shape, const EmbeddingParameters<const T>& weights,
                                    const Examples& examples, View<const T> x, double labels_of_all,
                                    const GradientSum<T>& grad_embedding, const GradientSum<T>& grad_norm,
                                    View<T> grad_x, const RowTiles& tiles = {});

}  // namespace ring_attention::model
