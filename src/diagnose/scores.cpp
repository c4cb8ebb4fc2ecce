#include "diagnose/scores.hpp"

#include <cmath>

namespace ring_attention::diagnose {

Matrix<double> product(const Matrix<double>& a, const Matrix<double>& b, Precision sums) {
  // Tiles are small: Eigen's product for large matrices would take most of its time for getting ready.
  if (sums == Precision::float64) return a.lazyProduct(b);
  const Matrix<float> c = a.cast<float>(), d = b.cast<float>(), in_float = c.lazyProduct(d);
  return in_float.cast<double>();
}

Shards::Shards(const Slots& slots, Index heads, Index dim)
    : heads_(heads),
      parts_(static_cast<std::size_t>(slots.ranks() * heads), Matrix<double>::Zero(slots.count(), dim)) {}

Shards::Shards(const Slots& slots, const Tensor<double>& array)
    : Shards(slots, array.shape().heads, array.shape().dim) {
  for (int rank = 0; rank < slots.ranks(); ++rank)
    for (Index head = 0; head < heads_; ++head)
      for (Index slot = 0; slot < slots.count(); ++slot)
        if (const Index position = slots.at(rank, slot).position; position < array.shape().seq)
          at(rank, head).row(slot) = matrix(array.view(), 0, head).row(position);
}

Tensor<double> Shards::joined(const Slots& slots, Index tokens) const {
  Tensor<double> array({1, heads_, tokens, parts_.front().cols()});
  for (int rank = 0; rank < slots.ranks(); ++rank)
    for (Index head = 0; head < heads_; ++head)
      for (Index slot = 0; slot < slots.count(); ++slot)
        if (const Index position = slots.at(rank, slot).position; position < tokens)
          matrix(array.view(), 0, head).row(position) = at(rank, head).row(slot);
  return array;
}

Scorer::Scorer(const Problem& problem, const Rules& rules, const Slots& slots, Precision precision)
    : problem_(problem),
      rules_(rules),
      slots_(slots),
      sums_(sums_of(precision)),
      scale_(rules.scale(problem.the_case)),
      q_(slots, problem.q),
      k_(slots, problem.k),
      v_(slots, problem.v) {}

Steps Scorer::steps(int rank) const {
  const Turn turn{{rank, slots_.ranks()}, rules_.direction};
  Steps steps;
  for (int hops = 0; hops < turn.ring.steps(); ++hops) {
    const int owner = turn.owner(hops);
    steps.push_back({owner, owner, owner, owner, owner});
  }
  for (const auto& edit : rules_.schedule) edit(turn, steps);
  return steps;
}

bool Scorer::sees(Pair pair) const {
  for (const auto& edit : rules_.mask_positions) edit(slots_, pair);
  const Case& c = problem_.the_case;
  return rules_.padding(c, pair) && rules_.causal(c, pair) && rules_.window(c, pair) &&
         rules_.documents(c, pair);
}

double Scorer::bias(Pair pair, Index head) const {
  for (const auto& edit : rules_.bias_positions) edit(slots_, pair);
  const Index query = pair.query.position, key = pair.key.position, tokens = problem_.the_case.tokens;
  if (!problem_.slopes.empty()) {
    const double slope = problem_.slopes[static_cast<std::size_t>(rules_.slope_head(problem_, head))];
    return rules_.bias(problem_.the_case, -slope * static_cast<double>(std::abs(query - key)));
  }
  if (problem_.bias.size() == 0 || query >= tokens || key >= tokens) return 0;
  return rules_.bias(problem_.the_case,
                     problem_.bias.view()(0, rules_.bias_head(problem_, head), query, key));
}

std::vector<Matrix<double>> Scorer::scores(int rank, const Step& step) const {
  const Index count = slots_.count(), heads = problem_.the_case.heads;
  const bool biased = !problem_.slopes.empty() || problem_.bias.size() > 0;
  std::vector<Matrix<double>> all;
  all.reserve(static_cast<std::size_t>(heads));
  for (Index head = 0; head < heads; ++head)
    all.push_back(scale_ * product(queries(rank, head), keys(step, head).transpose(), sums_));
  Index pairs = 0, visible = 0;  // of tokens
  for (Index i = 0; i < count; ++i)
    for (Index j = 0; j < count; ++j) {
      const Pair pair{slots_.at(rank, i), slots_.at(step.positions, j), slots_.at(step.k, j),
                      slots_.at(rank, j)};
      const bool seen = sees(pair);
      const bool of_tokens = std::max(pair.query.position, pair.content.position) < slots_.tokens();
      pairs += of_tokens ? 1 : 0;
      visible += of_tokens && seen ? 1 : 0;
      for (Index head = 0; head < heads; ++head) {
        double& score = all[static_cast<std::size_t>(head)](i, j);
        if (biased) score += bias(pair, head);
        score = seen ? rounded(score, sums_) : rules_.hidden_score;
      }
    }
  if (rules_.skips_partial_tiles && visible < pairs)
    for (Matrix<double>& of_head : all) of_head.setConstant(rules_.hidden_score);
  return all;
}

}  // namespace ring_attention::diagnose
