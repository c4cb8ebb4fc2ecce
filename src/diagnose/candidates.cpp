#include "diagnose/candidates.hpp"

#include <cmath>
#include <memory>
#include <optional>

#include "ring_attention/core/random.hpp"

namespace ring_attention::diagnose {
namespace {

double inner(const Tensor<double>& a, const Tensor<double>& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i) sum += a.data()[i] * b.data()[i];
  return sum;
}

double norm(const Tensor<double>& a) { return std::sqrt(inner(a, a)); }

Forward simulated(const Problem& problem, const Explanation& forward, Precision precision) {
  if (forward.hypothesis.in_float()) precision = std::max(precision, Precision::float32);
  return simulate_forward(problem, forward.hypothesis.rules(), precision);
}

bool has_nan(const Arrays& arrays) {
  return std::ranges::any_of(of_forward, [&](Array array) {
    const auto all = arrays[array].view().elements();
    return std::any_of(all.begin(), all.end(), [](double x) { return std::isnan(x); });
  });
}

/// Where NaN of a forward goes depends on whether a code multiplies it by the zeros of hidden pairs: nothing can be said.
void forget_nan(Arrays& gradients) {
  for (const Array array : of_backward)
    for (double& x : gradients[array].view().elements())
      if (std::isnan(x)) x = beyond_float;
}

/// What a wrong forward returned: what the user has, or else what is simulated.
Forward own_forward(const Evidence& one, const Explanation& forward, Precision precision) {
  Forward own = simulated(*one.problem, forward, precision);
  for (const Array array : of_forward)
    if (one.got->has(array) && forward.hypothesis.mistakes.empty())
      own.arrays[array] = (*one.got)[array].clone();
  return own;
}

/// The difference of sum(out * dout) between two steps along a direction, over the distance.
double slope(const Problem& problem, const Explanation& forward, Array gradient,
             const Tensor<double>& direction) {
  constexpr double step = 1e-5;
  double value[2] = {};
  for (const int side : {0, 1}) {
    const Problem moved = problem.moved(gradient, direction, side == 0 ? -step : step);
    value[side] = inner(simulated(moved, forward, Precision::float64).arrays[Array::out], problem.dout);
  }
  return (value[1] - value[0]) / (2 * step);
}

/// Both mistakes, if one ring can make them.
std::optional<Hypothesis> joined(const Hypothesis& first, const Hypothesis& second) {
  if (first.has(second.mistakes.back())) return {};
  if (first.direction != second.direction && first.directed() && second.directed()) return {};
  Hypothesis both = first;
  if (!first.directed()) both.direction = second.direction;
  both.follows_content = first.follows_content || second.follows_content;
  both.mistakes.push_back(second.mistakes.back());
  return both;
}

}  // namespace

std::vector<Explanation> singles(const std::vector<const Mistake*>& mistakes, bool backward, int ring,
                                 const Explanation& base) {
  std::vector<Explanation> all;
  for (const Mistake* mistake : mistakes) {
    if (!(backward ? mistake->in_backward() : mistake->in_forward()) || base.hypothesis.has(mistake))
      continue;
    if (mistake->loses_digits && !base.hypothesis.mistakes.empty()) continue;
    Explanation one = base;
    one.hypothesis.mistakes.push_back(mistake);
    const bool directed = ring > 2 && one.hypothesis.directed();
    for (const int direction : {1, -1}) {
      if (direction < 0 && !directed) continue;
      one.hypothesis.direction = direction;
      one.hypothesis.follows_content = base.hypothesis.follows_content;
      all.push_back(one);
      if (!backward || !mistake->moves_content) continue;
      one.hypothesis.follows_content = true;
      all.push_back(one);
    }
  }
  return all;
}

std::vector<Explanation> pairs(const std::vector<Explanation>& singles, const Search& search) {
  std::vector<Explanation> all;
  std::vector<bool> shows, explains;  // in the first case, by itself
  for (const Explanation& one : singles) {
    shows.push_back(!one.hypothesis.loses_digits() && search.shows_first(one));
    explains.push_back(shows.back() && search.explains_first(one));
  }
  for (std::size_t i = 0; i < singles.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      // What does not show in the first case leaves it to the other to explain it.
      if (!(shows[i] && shows[j]) && !explains[i] && !explains[j]) continue;
      if (singles[i].hypothesis.loses_digits() || singles[j].hypothesis.loses_digits()) continue;
      if (const auto both = joined(singles[j].hypothesis, singles[i].hypothesis)) {
        all.push_back(singles[i]);
        all.back().hypothesis = *both;
      }
    }
  return all;
}

Search::Simulate Simulations::remembering(Known& known, Simulated simulated) {
  return [&known, simulated = std::move(simulated)](const Evidence& one, const Explanation& explanation,
                                                    Precision precision) {
    // Before the size is compared: g++ 14 warns about a copy whose size it knows.
    const Key key{&one, precision, explanation.hypothesis, explanation.given_own};
    if (explanation.hypothesis.mistakes.size() > 1)  // there are many pairs
      return std::make_shared<const Arrays>(simulated(one, explanation, precision));
    std::shared_ptr<const Arrays>& arrays = known[key];
    if (arrays == nullptr) arrays = std::make_shared<const Arrays>(simulated(one, explanation, precision));
    return arrays;
  };
}

Search::Simulate Simulations::forward() {
  return remembering(forwards_, [](const Evidence& one, const Explanation& explanation, Precision precision) {
    return std::move(simulated(*one.problem, explanation, precision).arrays);
  });
}

Search::Simulate Simulations::backward(const Explanation& of) {
  // One forward serves all backwards of a case.
  const auto forwards = std::make_shared<std::map<std::pair<const Evidence*, Precision>, Forward>>();
  const auto simulated = [=](const Evidence& one, const Explanation& explanation, Precision precision) {
    const Rules rules = explanation.hypothesis.rules();
    if (!explanation.given_own) return simulate_backward(*one.problem, rules, *one.right, precision);
    const std::pair key{&one, precision};
    if (!forwards->contains(key)) forwards->emplace(key, own_forward(one, of, precision));
    const Forward& own = forwards->at(key);
    Arrays arrays = simulate_backward(*one.problem, rules, own, precision);
    if (has_nan(own.arrays)) forget_nan(arrays);
    return arrays;
  };
  return remembering(backwards_[of.hypothesis], simulated);
}

bool is_derivative(std::span<const Evidence> cases, const Explanation& forward, Precision precision) {
  constexpr int directions = 3;
  constexpr double least = 1e-5;  // error of the differences
  bool looked = false;
  for (const Evidence& one : cases) {
    const Problem& problem = *one.problem;
    if (problem.the_case.large_scores) continue;  // steps would have to be smaller
    for (const Array gradient : of_backward) {
      if (!one.got->has(gradient)) continue;
      const Tensor<double>& got = (*one.got)[gradient];
      const double tolerance = std::max(safety * least, of(one.yardstick->tolerances(precision), gradient));
      for (int i = 0; i < directions; ++i) {
        Tensor<double> direction(got.shape());
        fill_random(direction.view(), RandomFill{static_cast<std::uint64_t>(i), 99});
        const double want = slope(problem, forward, gradient, direction);
        if (!(std::abs(inner(got, direction) - want) <= tolerance * norm(got))) return false;
        looked = true;
      }
    }
  }
  return looked;
}

}  // namespace ring_attention::diagnose
