/// \file
/// AdamW (Loshchilov, Hutter, arXiv 1711.05101), clipping by the global norm, the schedule, and a step of training.
#pragma once

#include "model/transformer.hpp"

namespace ring_attention::model {

/// How a training goes. The defaults train both tasks.
struct Recipe {
  double rate = 1e-2, last_rate = 1e-4;
  Index warm_up = 50;  ///< steps of linear warm-up
  Index steps = 400;   ///< of the whole training: after the warm-up the rate falls by a cosine up to them
  double beta_1 = 0.9, beta_2 = 0.98, epsilon = 1e-8;
  double decay = 0.01;  ///< of matrices, not of gains and the embedding
  double clip = 1;      ///< largest norm of the gradient
};

/// The learning rate of step 0, 1, ...
[[nodiscard]] double rate_at(const Recipe& recipe, Index step);

/// sqrt(sum g^2) over all parameters of the model, each counted once: pieces over the replicas, then parts over the
/// tensor group, where a parameter that several ranks have counts on one of them. The same bits on all ranks. Collective.
/// \param in_one_order  each rank adds all squares by itself: the same bits on any number of replicas. Not with FSDP
template <class T>
[[nodiscard]] double gradient_norm(Weights<T>& weights, AllToAll& tensor, bool in_one_order = false);

/// The optimiser's numbers for what a rank keeps of the weights.
template <class T>
class AdamW {
 public:
  explicit AdamW(const Weights<T>& weights);

  /// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, p -= rate (m' / (sqrt(v') + eps) + decay p), with m' and v' without
  /// the bias of their start at 0. g is `factor` times the gradients in `weights`.
  void step(Weights<T>& weights, const Recipe& recipe, double rate, double factor);

  /// How many steps were made, and the moments of the kept elements: to save and to load.
  [[nodiscard]] Index& steps() { return steps_; }
  [[nodiscard]] std::span<T> first(std::size_t array) { return first_[array].view().elements(); }
  [[nodiscard]] std::span<T> second(std::size_t array) { return second_[array].view().elements(); }

 private:
  std::vector<Tensor<T>> first_, second_;
  Index steps_ = 0;
};

/// What a step of training tells.
struct StepReport {
  Score score;  ///< before the step
  double gradient_norm = 0, rate = 0;
};

/// Gradients, clipping, AdamW. The rate is that of adam.steps(), which also numbers the dropout. Collective.
/// \throws AgreedError on all ranks when loss or gradient are not finite; the weights are those before the step
template <class T>
StepReport train_step(Transformer<T>& model, AdamW<T>& adam, const Recipe& recipe, const Examples& own);

}  // namespace ring_attention::model
