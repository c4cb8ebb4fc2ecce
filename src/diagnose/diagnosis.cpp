#include "diagnose/diagnosis.hpp"

#include <algorithm>

#include "diagnose/candidates.hpp"
#include "diagnose/conventions.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {
namespace {

constexpr std::size_t near_ones = 3;
/// Forwards that cannot be told apart, and may be by their gradients.
constexpr std::size_t forwards_to_try = 6;

class Examination {
 public:
  Examination(std::span<const Evidence> cases, const Options& options, Simulations& simulations)
      : cases_(cases), options_(options), simulations_(simulations) {
    ring_ = cases.front().problem->job.ring();
    for (const Evidence& one : cases) {
      has_forward_ = has_forward_ || one.got->has_any(of_forward);
      has_backward_ = has_backward_ || one.got->has_any(of_backward);
      forward_.returned = std::max(forward_.returned, precision_of(*one.got, of_forward));
      backward_.returned = std::max(backward_.returned, precision_of(*one.got, all_arrays));
    }
  }

  /// With pairs of mistakes only if asked for: they take a hundred times as long.
  void run(bool with_pairs) {
    if (has_forward_) examine_forward(with_pairs);
    if (has_backward_) examine_backward(with_pairs);
  }

  [[nodiscard]] const Pass& forward() const { return forward_; }
  [[nodiscard]] const Pass& backward() const { return backward_; }

 private:
  /// Calls `attempt(precision, coarser than that of the numbers)`, the finest first, until it is true.
  void for_precisions(Pass& pass, const auto& attempt) {
    for (const Precision precision : all_precisions) {
      if (precision < pass.returned) continue;
      pass.precision = precision;
      if (attempt(precision, precision > pass.returned)) return;
    }
    pass.precision = pass.returned;
    pass.state = State::unknown;
  }

  [[nodiscard]] bool named(Pass& pass, std::vector<Explanation> fitting) {
    if (fitting.empty()) return false;
    pass.state = State::named;
    pass.explanations = std::move(fitting);
    return true;
  }

  /// Judges all candidates; a progress line for many.
  [[nodiscard]] std::vector<Explanation> judged(const Search& search, std::vector<Explanation> candidates,
                                                const char* what = nullptr) const {
    constexpr std::size_t often = 500;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (what != nullptr && i % often == 0)
        options_.progress(format("%s: %d of %d pairs of mistakes", what, static_cast<int>(i),
                                 static_cast<int>(candidates.size())));
      candidates[i] = search.judged(candidates[i]);
    }
    return candidates;
  }

  void examine_forward(bool with_pairs) {
    for_precisions(forward_, [&](Precision precision, bool spread) {
      const Search search(cases_, of_forward, precision, spread, simulations_.forward());
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

  void examine_backward(bool with_pairs) {
    for_precisions(backward_, [&](Precision precision, bool spread) {
      const Search search(cases_, of_backward, precision, spread, simulations_.backward({}));
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

  /// Is the backward right for what a wrong forward returned, or wrong by the same mistake?
  [[nodiscard]] bool follows(const std::vector<Explanation>& forwards, Precision precision, bool spread) {
    if (forward_.state == State::right || forward_.state == State::absent) return false;
    std::vector<Explanation> settled, backwards;
    for (const Explanation& forward : forwards) {
      const Search search(cases_, of_backward, precision, spread, simulations_.backward(forward));
      for (const Explanation& one :
           with_the_same_mistakes(forward)) {  // the first that fits: without a mistake
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

  /// Backwards of a wrong forward without a mistake of their own.
  [[nodiscard]] static std::vector<Explanation> with_the_same_mistakes(const Explanation& forward) {
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

  /// One more mistake, or two, in the backward.
  [[nodiscard]] bool has_its_own(const std::vector<Explanation>& forwards, Precision precision, bool spread,
                                 bool with_pairs) {
    for (const Explanation& forward : forwards) {
      const Search search(cases_, of_backward, precision, spread, simulations_.backward(forward));
      std::vector<Explanation> bases{{}};
      if (forward_.state == State::named || forward_.state == State::unknown)
        for (Explanation& same : with_the_same_mistakes(forward)) bases.push_back(same);
      std::vector<Explanation> all;
      for (const Explanation& base : bases)
        for (Explanation& one : singles(options_.mistakes, true, ring_, base))
          if (bases.size() == 1 || !one.hypothesis.loses_digits())
            all.push_back(one);  // not what is left unexplained
      all = judged(search, all);
      if (named(backward_, search.fitting(all))) {
        settle(forward);
        return true;
      }
      if (precision == backward_.returned && backward_.near.empty())
        backward_.near = search.nearest(all, near_ones);
      if (!with_pairs || precision != backward_.returned) continue;
      const std::vector<Explanation> plain = judged(search, singles(options_.mistakes, true, ring_));
      if (named(backward_, search.fitting(judged(search, pairs(plain, search), "backward")))) {
        settle(forward);
        return true;
      }
    }
    return false;
  }

  /// The gradients decide between forwards that out and lse could not tell apart.
  void settle(const Explanation& forward) {
    if (forward_.state == State::named) forward_.explanations = {forward};
  }

  std::span<const Evidence> cases_;
  const Options& options_;
  Simulations& simulations_;
  int ring_ = 1;
  bool has_forward_ = false, has_backward_ = false;
  Pass forward_, backward_;
};

/// The cases that are wrong and can be explained by themselves.
std::vector<CaseAlone> cases_alone(std::span<const Evidence> cases, const Options& options,
                                   Simulations& simulations) {
  std::vector<CaseAlone> all;
  for (const Evidence& one : cases) {
    Examination examination(std::span(&one, 1), options, simulations);
    examination.run(false);
    const Pass &forward = examination.forward(), &backward = examination.backward();
    const bool wrong = forward.state > State::right || backward.state > State::right;
    if (wrong && forward.state != State::unknown && backward.state != State::unknown)
      all.push_back({one.problem->the_case.name, forward, backward});
  }
  return all;
}

/// \param known  of the same problems
Diagnosis diagnosed(std::span<const Evidence> known, const std::vector<Answer>& answers,
                    const Options& options, bool with_pairs) {
  std::vector<Evidence> cases;
  for (std::size_t i = 0; i < answers.size(); ++i) cases.emplace_back(known[i], answers[i]);
  Simulations simulations;
  Examination examination(cases, options, simulations);
  examination.run(with_pairs);
  Diagnosis result;
  result.forward = examination.forward();
  result.backward = examination.backward();
  const Precision returned = std::max(result.forward.returned, result.backward.returned);
  if (!result.explained()) result.alone = cases_alone(cases, options, simulations);
  if (result.right() && options.lists_not_tested) result.not_tested = not_tested_by(cases, options, returned);
  return result;
}

}  // namespace

Options::Options() {
  for (const Mistake& mistake : all_mistakes()) mistakes.push_back(&mistake);
}

Diagnosis diagnose(const std::vector<Answer>& answers, const Options& options) {
  const std::vector<Evidence> known = evidence_of(answers);
  const auto attempt = [&](const Convention* convention, bool with_pairs) {
    std::vector<Answer> translated = copies(answers);
    std::vector<std::string> said;
    if (convention != nullptr) {
      said.push_back(convention->says);
      for (Answer& answer : translated) convention->translate(*answer.problem, answer.arrays);
    }
    translate_units(known, translated, said);
    Diagnosis result = diagnosed(known, translated, options, with_pairs);
    result.conventions = said;
    return result;
  };
  const Diagnosis plain = attempt(nullptr, false);
  if (plain.explained()) return plain;
  for (const Convention& convention : conventions_for(*answers.front().problem))
    if (Diagnosis result = attempt(&convention, false); result.explained()) return result;
  return options.pairs ? attempt(nullptr, true) : plain;
}

std::vector<const Mistake*> not_tested_by(std::span<const Evidence> cases, const Options& options,
                                          Precision precision) {
  std::vector<const Mistake*> unseen;
  Simulations simulations;
  const int ring = cases.front().problem->job.ring();
  const auto shows = [&](const Mistake* mistake, bool backward, std::span<const Array> which) {
    for (const Explanation& one : singles({mistake}, backward, ring))
      for (const Evidence& evidence : cases) {
        const Search search(std::span(&evidence, 1), which, precision, false,
                            backward ? simulations.backward({}) : simulations.forward());
        if (evidence.got->has_any(which) && search.shows_first(one)) return true;
      }
    return false;
  };
  for (const Mistake* mistake : options.mistakes)
    if (!shows(mistake, false, of_forward) && !shows(mistake, true, of_backward)) unseen.push_back(mistake);
  return unseen;
}

}  // namespace ring_attention::diagnose
