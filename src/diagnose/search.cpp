#include "diagnose/search.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace ring_attention::diagnose {
namespace {

constexpr double no_fit = 1e9;     // of an explanation that is ruled out
constexpr double named_above = 5;  // a mistake explains that many times better than "right"
constexpr double alike_below = 5;  // explanations that are worse by more are no ties
constexpr double far_off = 0.2;    // errors of half of the rows: no rounding
constexpr double no_better = 0.9;  // than "right": what is left of the squares

double least(const PerArray& numbers) { return *std::ranges::min_element(numbers); }

/// At least what such errors need.
void widen(PerArray& tolerances, const PerArray& errors) {
  for (const Array array : all_arrays)
    of(tolerances, array) = std::max(of(tolerances, array), safety * of(errors, array));
}

/// The mistakes in order, to compare sets of them.
std::vector<const Mistake*> sorted_mistakes(const Explanation& explanation) {
  std::vector<const Mistake*> mistakes = explanation.hypothesis.mistakes;
  std::ranges::sort(mistakes);
  return mistakes;
}

}  // namespace

Evidence::Evidence(const Answer& answer)
    : problem(answer.problem),
      got(&answer.arrays),
      yardstick(std::make_shared<Yardstick>(*answer.problem)),
      right(std::make_shared<Forward>(simulate_forward(*answer.problem, Rules()))) {}

Evidence::Evidence(const Evidence& other, const Answer& answer) : Evidence(other) { got = &answer.arrays; }

std::vector<Evidence> evidence_of(const std::vector<Answer>& answers) {
  std::vector<Evidence> all;
  for (const Answer& answer : answers) all.emplace_back(answer);
  return all;
}

Search::Search(std::span<const Evidence> cases, std::span<const Array> which, Precision precision,
               bool spread, Simulate simulate)
    : which_(which), precision_(precision), spread_(spread), simulate_(std::move(simulate)) {
  std::vector<std::pair<double, const Evidence*>> by_square;
  for (const Evidence& one : cases) {
    if (!one.got->has_any(which)) continue;
    const PerArray tolerances = one.yardstick->tolerances(precision);
    const Residual residual = one.yardstick->residual(*one.got, one.problem->right, which, tolerances);
    right_worst_ = std::max(right_worst_, residual.worst);
    by_square.emplace_back(residual.square(), &one);
    if (spread &&
        residual.quantile(0.5) < least(one.yardstick->tolerances_of_states(precision)) / safety / 50)
      spreads_ = false;
  }
  std::ranges::stable_sort(by_square, std::ranges::greater(), [](const auto& pair) { return pair.first; });
  for (const auto& [square, one] : by_square) {
    cases_.push_back(one);
    right_squares_.push_back(square);
  }
}

std::shared_ptr<const Arrays> Search::exact(const Evidence& one, const Explanation& explanation) const {
  return simulate_(one, explanation,
                   explanation.hypothesis.in_float() ? Precision::float32 : Precision::float64);
}

Residual Search::residual(std::size_t i, const Explanation& explanation) const {
  const Evidence& one = *cases_[i];
  const std::shared_ptr<const Arrays> exactly = exact(one, explanation);
  const Arrays& wanted = *exactly;
  PerArray tolerances = one.yardstick->tolerances_of_states(precision_);
  Residual first = one.yardstick->residual(*one.got, wanted, which_, tolerances);
  if (first.worst <= 1) return first;
  if (explanation.hypothesis.loses_digits()) {  // it is nothing but rounding: as large in every case
    const Arrays& right = one.problem->right;
    const PerArray lost = one.yardstick->largest(wanted, right);
    if (*std::ranges::max_element(lost) > far_off) return first;  // the hypothesis does more than lose digits
    const double expected = one.yardstick->residual(wanted, right, which_, tolerances).quantile(0.5);
    if (one.yardstick->residual(*one.got, right, which_, tolerances).quantile(0.5) < expected / 10)
      return first;
    widen(tolerances, lost);
    return one.yardstick->residual(*one.got, wanted, which_, tolerances);
  }
  if (first.quantile(0.5) > far_off || first.square() > no_better * right_squares_[i]) return first;
  // Wrong results may be larger, and rounding moves them further. Where the mistake is an overflow, the rows that do so
  // are the evidence.
  const bool overflows = explanation.hypothesis.in_float();
  const auto otherwise = simulate_(one, explanation, overflows ? Precision::float64 : precision_);
  const Arrays& other = *otherwise;
  widen(tolerances, one.yardstick->largest(other, wanted, &other));
  const Residual second =
      one.yardstick->residual(*one.got, wanted, which_, tolerances, overflows ? nullptr : &other);
  return second.rows.empty() ? first : second;
}

Explanation Search::judged(Explanation explanation) const {
  explanation.worst = 0;
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    const Residual left = residual(i, explanation);
    if (i == 0) explanation.explained = 1 - left.square() / std::max(right_squares_[0], 1e-300);
    explanation.worst = std::max(explanation.worst, left.worst);
    const double rounding = least(cases_[i]->yardstick->tolerances_of_states(precision_)) / safety;
    if (spread_ && left.quantile(0.5) < rounding / 50) explanation.worst = no_fit;
    if (!(explanation.worst <= 1)) return explanation;
  }
  if (right_worst_ < named_above * explanation.worst) explanation.worst = no_fit;
  return explanation;
}

double Search::explained(const Explanation& explanation) const {
  double left = 0, all = 0;
  for (std::size_t i = 0; i < cases_.size(); ++i) {
    left += residual(i, explanation).square();
    all += right_squares_[i];
  }
  return 1 - left / std::max(all, 1e-300);
}

std::vector<Explanation> Search::fitting(const std::vector<Explanation>& candidates) const {
  std::map<std::vector<const Mistake*>, Explanation> best;
  for (const Explanation& candidate : candidates) {
    // What changes nothing explains nothing, even if a wider tolerance lets it fit.
    if (!candidate.fits() || !shows_somewhere(candidate)) continue;
    const auto [at, is_new] = best.emplace(sorted_mistakes(candidate), candidate);
    if (!is_new && candidate.worst < at->second.worst) at->second = candidate;
  }
  std::vector<Explanation> fitting;
  for (const auto& [mistakes, explanation] : best) fitting.push_back(explanation);
  if (fitting.empty()) return fitting;
  const auto loses_digits = [](const Explanation& one) { return one.hypothesis.loses_digits(); };
  if (!std::ranges::all_of(fitting, loses_digits)) std::erase_if(fitting, loses_digits);
  std::ranges::sort(fitting, {}, &Explanation::worst);
  const double alike = std::max(alike_below * fitting.front().worst, 1 / alike_below);
  std::erase_if(fitting, [=](const Explanation& other) { return other.worst > alike; });
  return fitting;
}

std::vector<Explanation> Search::nearest(const std::vector<Explanation>& candidates, std::size_t most) const {
  std::vector<Explanation> sorted = candidates;
  std::ranges::sort(sorted, std::ranges::greater(), &Explanation::explained);
  std::vector<Explanation> nearest;
  for (const Explanation& candidate : sorted) {
    if (nearest.size() == most || candidate.explained <= 0.5) break;
    const auto mistakes = sorted_mistakes(candidate);
    if (std::ranges::any_of(nearest, [&](const Explanation& n) { return sorted_mistakes(n) == mistakes; }))
      continue;
    nearest.push_back(candidate);
    nearest.back().explained = explained(candidate);
  }
  std::erase_if(nearest, [](const Explanation& one) { return one.explained <= 0; });  // over all cases
  std::ranges::sort(nearest, std::ranges::greater(), &Explanation::explained);
  return nearest;
}

bool Search::shows(std::size_t number, const Explanation& explanation) const {
  const Evidence& one = *cases_[number];
  const auto arrays = exact(one, explanation);
  Arrays wanted;
  for (const Array array : which_)
    if (one.got->has(array)) wanted[array] = (*arrays)[array].clone();
  return one.yardstick
             ->residual(wanted, one.problem->right, which_, one.yardstick->tolerances_of_states(precision_))
             .worst > 1;
}

bool Search::shows_somewhere(const Explanation& explanation) const {
  for (std::size_t i = 0; i < cases_.size(); ++i)
    if (shows(i, explanation)) return true;
  return false;
}

}  // namespace ring_attention::diagnose
