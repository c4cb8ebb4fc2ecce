#include "diagnose/diagnosis.hpp"

#include <algorithm>

#include "diagnose/candidates.hpp"
#include "diagnose/conventions.hpp"
#include "diagnose/examination.hpp"

namespace ring_attention::diagnose {
namespace {

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
  Diagnosis plain = attempt(nullptr, false);
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
