#include "diagnose/examination.hpp"

#include <algorithm>

#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {
namespace {

constexpr std::size_t near_ones = 3;
/// Forwards that cannot be told apart, and may be by their gradients.
constexpr std::size_t forwards_to_try = 6;

bool named(Pass& pass, std::vector<Explanation> fitting) {
  if (fitting.empty()) return false;
  pass.state = State::named;
  pass.explanations = std::move(fitting);
  return true;
}

/// Backwards of a wrong forward without a mistake of their own.
std::vector<Explanation> with_the_same_mistakes(const Explanation& forward) {
  std::vector<Explanation> all;
  Explanation same = forward;
  same.is_derivative = false;
  std::erase_if(same.hypothesis.mistakes, [](const Mistake* mistake) { return !mistake->in_backward(); });
  for (const bool own : {true, false}) {
    same.given_own = own;
    Explanation none;
    none.given_own = own;
    if (own) all.push_back(none);
    if (same.hypothesis.mistakes.empty()) continue;
    same.hypothesis.follows_content = false;
    all.push_back(same);
    same.hypothesis.follows_content = true;
    all.push_back(same);
  }
  return all;
}

}  // namespace

Examination::Examination(std::span<const Evidence> cases, const Options& options, Simulations& simulations)
    : cases_(cases), options_(options), simulations_(simulations), ring_(cases.front().problem->job.ring()) {
  for (const Evidence& one : cases) {
    has_forward_ = has_forward_ || one.got->has_any(of_forward);
    has_backward_ = has_backward_ || one.got->has_any(of_backward);
    forward_.returned = std::max(forward_.returned, precision_of(*one.got, of_forward));
    backward_.returned = std::max(backward_.returned, precision_of(*one.got, all_arrays));
  }
}

void Examination::run(bool with_pairs) {
  if (has_forward_) examine_forward(with_pairs);
  if (has_backward_) examine_backward(with_pairs);
}

/// Calls `attempt(precision, coarser than that of the numbers)`, the finest first, until it is true.
void Examination::for_precisions(Pass& pass, const auto& attempt) {
  for (const Precision precision : all_precisions) {
    if (precision < pass.returned) continue;
    pass.precision = precision;
    if (attempt(precision, precision > pass.returned)) return;
  }
  pass.precision = pass.returned;
  pass.state = State::unknown;
}

/// Judges all candidates; a progress line for many.
std::vector<Explanation> Examination::judged(const Search& search, std::vector<Explanation> candidates,
                                             const char* what) const {
  constexpr std::size_t often = 500;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (what != nullptr && i % often == 0)
      options_.progress(format("%s: %d of %d pairs of mistakes", what, static_cast<int>(i),
                               static_cast<int>(candidates.size())));
    candidates[i] = search.judged(candidates[i]);
  }
  return candidates;
}

void Examination::examine_forward(bool with_pairs) {
  for_precisions(forward_, [&](Precision precision, bool spread) {
    const Search search(cases_, of_forward, precision, spread, simulations_.forward());
    forward_.right_worst = search.right_worst();
    if (search.right()) {
      forward_.state = State::right;
      return true;
    }
    const std::vector<Explanation> all = judged(search, singles(options_.mistakes, false, ring_));
    if (named(forward_, search.fitting(all))) return true;
    if (precision == forward_.returned) forward_.near = search.nearest(all, near_ones);
    return with_pairs && precision == forward_.returned &&
           named(forward_, search.fitting(judged(search, pairs(all, search), "forward")));
  });
}

void Examination::examine_backward(bool with_pairs) {
  for_precisions(backward_, [&](Precision precision, bool spread) {
    const Search search(cases_, of_backward, precision, spread, simulations_.backward({}));
    backward_.right_worst = search.right_worst();
    if (search.right()) {
      backward_.state = State::right;
      return true;
    }
    std::vector<Explanation> forwards = forward_.explanations;
    if (forwards.empty()) forwards.emplace_back();
    if (forwards.size() > forwards_to_try) forwards.resize(forwards_to_try);
    return follows(forwards, precision, spread) || has_its_own(forwards, precision, spread, with_pairs);
  });
}

bool Examination::follows(const std::vector<Explanation>& forwards, Precision precision, bool spread) {
  std::vector<Explanation> settled, backwards;
  for (const Explanation& forward : forwards) {
    const Search search(cases_, of_backward, precision, spread, simulations_.backward(forward));
    // The first that fits: without a mistake, if possible.
    for (const Explanation& one : with_the_same_mistakes(forward)) {
      const Explanation result = search.judged(one);
      if (!result.fits()) continue;
      settled.push_back(forward);
      backwards.push_back(result);
      break;
    }
  }
  for (const Explanation& forward : forwards) {
    if (!settled.empty() || forward_.state != State::named || !is_derivative(cases_, forward, precision))
      continue;
    settled.push_back(forward);
    backwards.emplace_back();
    backwards.back().is_derivative = true;
    backwards.back().explained = 1;
  }
  if (settled.empty()) return false;
  if (forward_.state == State::named) forward_.explanations = settled;
  return named(backward_, {backwards.front()});
}

bool Examination::has_its_own(const std::vector<Explanation>& forwards, Precision precision, bool spread,
                              bool with_pairs) {
  for (const Explanation& forward : forwards) {
    const Search search(cases_, of_backward, precision, spread, simulations_.backward(forward));
    const std::vector<Explanation> all = judged(search, singles_after(forward));
    bool found = named(backward_, search.fitting(all));
    if (!found && precision == backward_.returned) {
      if (backward_.near.empty()) backward_.near = search.nearest(all, near_ones);
      const std::vector<Explanation> plain = singles(options_.mistakes, true, ring_);
      found =
          with_pairs && named(backward_, search.fitting(judged(search, pairs(plain, search), "backward")));
    }
    // The gradients decide between forwards that out and lse could not tell apart.
    if (found && forward_.state == State::named) forward_.explanations = {forward};
    if (found) return true;
  }
  return false;
}

/// Single mistakes of the backward; of a wrong forward, also on top of its own.
std::vector<Explanation> Examination::singles_after(const Explanation& forward) const {
  if (forward_.state == State::right || forward_.state == State::absent)
    return singles(options_.mistakes, true, ring_);
  std::vector<Explanation> all;
  for (const Explanation& base : with_the_same_mistakes(forward))
    for (const Explanation& one : singles(options_.mistakes, true, ring_, base))
      if (!one.hypothesis.loses_digits()) all.push_back(one);
  return all;
}

}  // namespace ring_attention::diagnose
