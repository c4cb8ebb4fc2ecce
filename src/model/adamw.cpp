#include "model/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"

namespace ring_attention::model {
namespace {

/// The elements that two intervals share, [0, 0) if none.
Interval common(const Interval& a, const Interval& b) {
  const Interval both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : Interval{0, 0};
}

/// The constants of a step in type T.
template <class T>
struct Factors {
  T gradient, beta_1, beta_2, unbias_1, unbias_2, epsilon, rate;

  Factors(const Recipe& recipe, double of_gradient, double of_rate, Index steps)
      : gradient(static_cast<T>(of_gradient)),
        beta_1(static_cast<T>(recipe.beta_1)),
        beta_2(static_cast<T>(recipe.beta_2)),
        unbias_1(static_cast<T>(1 / (1 - std::pow(recipe.beta_1, static_cast<double>(steps))))),
        unbias_2(static_cast<T>(1 / (1 - std::pow(recipe.beta_2, static_cast<double>(steps))))),
        epsilon(static_cast<T>(recipe.epsilon)),
        rate(static_cast<T>(of_rate)) {}

  void update(T& p, T& m, T& v, T g, T decay) const {
    g *= gradient;
    m = beta_1 * m + (1 - beta_1) * g;
    v = beta_2 * v + (1 - beta_2) * g * g;
    p -= rate * (m * unbias_1 / (std::sqrt(v * unbias_2) + epsilon) + decay * p);
  }
};

}  // namespace

double rate_at(const Recipe& recipe, Index step) {
  const auto at = static_cast<double>(step), warm_up = static_cast<double>(recipe.warm_up);
  if (step < recipe.warm_up) return recipe.rate * (at + 1) / warm_up;
  const double share =
      (at - warm_up) / static_cast<double>(std::max<Index>(1, recipe.steps - recipe.warm_up));
  return recipe.last_rate + (recipe.rate - recipe.last_rate) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

template <class T>
double gradient_norm(Weights<T>& weights, AllToAll& tensor, bool in_one_order) {
  require(!in_one_order || weights.sharding() == Sharding::none,
          "gradient_norm: each rank has all gradients");
  double squares = 0;
  for (std::size_t array = 0; array < weights.arrays(); ++array) {
    const Interval piece = in_one_order ? weights.kept(array) : weights.piece(array);
    const std::span<const T> gradients =
        in_one_order ? weights.gradients(array) : weights.piece_of_gradients(array);
    for (const Parameter& parameter : weights.layout(array).parameters()) {
      if (!parameter.counts) continue;
      const Interval own = common(piece, parameter.elements());
      for (Index i = own.begin; i < own.end; ++i) {
        const auto g = static_cast<double>(gradients[static_cast<std::size_t>(i - piece.begin)]);
        squares += g * g;
      }
    }
  }
  if (!in_one_order) squares = all_reduce(weights.replicas(), squares);
  return std::sqrt(all_reduce(tensor, squares));
}

template <class T>
AdamW<T>::AdamW(const Weights<T>& weights) {
  for (std::size_t array = 0; array < weights.arrays(); ++array) {
    const Interval kept = weights.kept(array);
    first_.emplace_back(Shape{1, 1, 1, kept.end - kept.begin});
    second_.emplace_back(Shape{1, 1, 1, kept.end - kept.begin});
  }
}

template <class T>
void AdamW<T>::step(Weights<T>& weights, const Recipe& recipe, double rate, double factor) {
  ++steps_;
  const Factors<T> factors(recipe, factor, rate, steps_);
  for (std::size_t array = 0; array < weights.arrays(); ++array) {
    const Interval kept = weights.kept(array);
    const std::span<T> p = weights.values(array), g = weights.gradients(array), m = first(array),
                       v = second(array);
    for (const Parameter& parameter : weights.layout(array).parameters()) {
      const Interval own = common(kept, parameter.elements());
      const T decay = static_cast<T>(parameter.decays ? recipe.decay : 0);
      for (Index i = own.begin; i < own.end; ++i) {
        const auto at = static_cast<std::size_t>(i - kept.begin);
        factors.update(p[at], m[at], v[at], g[at], decay);
      }
    }
  }
}

template <class T>
StepReport train_step(Transformer<T>& model, AdamW<T>& adam, const Recipe& recipe, const Examples& own) {
  StepReport report;
  report.rate = rate_at(recipe, adam.steps());
  model.scoring().dropout.step = static_cast<std::uint64_t>(adam.steps());
  report.score = model.differentiate(own);
  report.gradient_norm =
      gradient_norm(model.weights(), *model.rank_context().tensor, model.rank_context().rows.exact);
  if (!std::isfinite(report.score.loss) || !std::isfinite(report.gradient_norm))
    throw AgreedError("step " + std::to_string(adam.steps()) +
                      ": the loss or its gradient is not finite: use a smaller learning rate");
  const double factor = report.gradient_norm > recipe.clip ? recipe.clip / report.gradient_norm : 1;
  adam.step(model.weights(), recipe, report.rate, factor);
  return report;
}

template double gradient_norm(Weights<float>&, AllToAll&, bool);
template double gradient_norm(Weights<double>&, AllToAll&, bool);
template class AdamW<float>;
template class AdamW<double>;
template StepReport train_step(Transformer<float>&, AdamW<float>&, const Recipe&, const Examples&);
template StepReport train_step(Transformer<double>&, AdamW<double>&, const Recipe&, const Examples&);

}  // namespace ring_attention::model
