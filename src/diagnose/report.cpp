#include "diagnose/report.hpp"

#include <algorithm>
#include <cmath>

#include "diagnose/picture.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string percent(double share) { return format(share > 0.9995 ? "%.0f %%" : "%.1f %%", 100 * share); }

/// The largest row error of each array of each case.
std::string error_table(const std::vector<Evidence>& cases, Precision precision) {
  std::size_t width = 4;
  for (const Evidence& one : cases) width = std::max(width, one.problem->the_case.name.size());
  std::string text;
  const auto row = [&](const std::string& first, const auto& cell_of) {
    std::string line = "  " + first + std::string(width - first.size(), ' ');
    for (const Array array : all_arrays) line += format("  %8s", cell_of(array).c_str());
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  row("case", [](Array array) { return name(array) + " "; });
  for (const Evidence& one : cases) {
    const auto largest = one.yardstick->largest(*one.got, one.problem->right);
    const auto tolerances = one.yardstick->tolerances(precision);
    row(one.problem->the_case.name, [&](Array array) -> std::string {
      const double error = of(largest, array);
      if (!one.got->has(array)) return "- ";
      if (!std::isfinite(error)) return "inf*";
      return format("%.1e", error) + (error <= of(tolerances, array) ? " " : "*");
    });
  }
  return text;
}

/// Where to look, the lesson, who had it.
std::string about(const Mistake& mistake) {
  std::string text;
  if (!mistake.look.empty()) text += "    look at      " + mistake.look + "\n";
  if (!mistake.lesson.empty()) text += "    lesson       " + mistake.lesson + "\n";
  if (!mistake.source.empty()) text += "    also in      " + mistake.source + "\n";
  return text;
}

/// What a backward does without a mistake of its own; empty when it has one.
std::string no_mistake_of_its_own(const Explanation& backward, const Pass& forward) {
  if (backward.is_derivative)
    return "the derivative of this forward, as autograd finds it: nothing more is wrong";
  if (backward.hypothesis.mistakes.empty())
    return backward.given_own ? "right for the out and lse of this forward" : "right";
  for (const Explanation& one : forward.explanations)
    if (one.hypothesis.mistakes == backward.hypothesis.mistakes) return "the same mistake, and no other";
  return "";
}

std::string right_text(const Pass& pass) {
  std::string text = "right, within the rounding of " + name(pass.precision);
  if (pass.precision > pass.returned)
    text += ", which is more than that of its " + name(pass.returned) +
            " numbers: is something kept or computed in less?";
  return text + "\n";
}

std::string unknown_text(const Pass& pass) {
  std::string text = "WRONG, by no mistake that is known here\n";
  for (const Explanation& near : pass.near)
    text += "    looks like   " + sentence(near) + ": explains " + percent(near.explained) +
            " of the difference\n";
  return text;
}

/// \param said  mistakes of the forward, which need not be explained again
std::string explanation_text(const Explanation& one, const Pass& pass,
                             const std::vector<const Mistake*>& said) {
  std::vector<std::string> sentences;
  std::string where;
  for (const Mistake* mistake : one.hypothesis.mistakes) {
    const bool again = std::ranges::find(said, mistake) != said.end();
    sentences.push_back(again ? "the same mistake" : mistake->says);
    if (!again) where += about(*mistake);
  }
  return "WRONG: " + joined(sentences, "; and ") + "\n" + where + "    explains     " +
         percent(one.explained) + " of the difference, every row within the rounding of " +
         name(pass.precision) + "\n";
}

std::string named_text(const Pass& pass, const Pass& forward) {
  const bool is_backward = &pass != &forward;
  if (is_backward)
    if (const std::string none = no_mistake_of_its_own(pass.explanations.front(), forward); !none.empty())
      return none + "\n";
  std::vector<const Mistake*> said;
  if (is_backward && !forward.explanations.empty()) said = forward.explanations.front().hypothesis.mistakes;
  std::string text;
  for (const Explanation& one : pass.explanations)
    text += (text.empty() ? "" : "        or  ") + explanation_text(one, pass, said);
  if (pass.explanations.size() > 1)
    text += "    The same numbers in these cases. More cases, or three ranks or more, may tell them apart.\n";
  return text;
}

std::string pass_text(const std::string& title, const Pass& pass, const Pass& forward) {
  switch (pass.state) {
    case State::absent: return "";
    case State::right: return title + right_text(pass);
    case State::unknown: return title + unknown_text(pass);
    case State::named: return title + named_text(pass, forward);
  }
  return "";
}

/// "out: axes are [S, H, D]" of several arrays: by what is said, in order.
std::vector<std::pair<std::string, std::vector<std::string>>> by_sentence(
    const std::vector<std::string>& layouts) {
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const std::string& line : layouts) {
    const std::size_t colon = line.find(": ");
    const std::string array = line.substr(0, colon), says = line.substr(colon + 2);
    const auto found = std::ranges::find(all, says, [](const auto& entry) { return entry.first; });
    if (found == all.end())
      all.push_back({says, {array}});
    else
      found->second.push_back(array);
  }
  return all;
}

/// Words with commas between them, in lines of at most 100 characters.
std::string wrapped(const std::vector<std::string>& words) {
  constexpr std::size_t width = 100;
  std::string text, line = " ";
  for (const std::string& word : words) {
    if (line.size() + word.size() + 2 > width) {
      text += line + "\n";
      line = " ";
    }
    line += " " + word + (&word == &words.back() ? "" : ",");
  }
  return text + line + "\n";
}

std::string not_tested_text(const Diagnosis& diagnosis) {
  if (diagnosis.not_tested.empty()) return "";
  std::vector<std::string> ids;
  for (const Mistake* mistake : diagnosis.not_tested) ids.push_back(mistake->id);
  return format("%d known mistakes would not show in them:\n", static_cast<int>(ids.size())) + wrapped(ids);
}

/// "causal, gqa    the mask compares places in the shard"
std::string alone_text(const Diagnosis& diagnosis) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_mistake;
  for (const CaseAlone& one : diagnosis.alone) {
    const Pass& wrong = one.forward.state == State::named ? one.forward : one.backward;
    const std::string says =
        sentence(wrong.explanations.front()) + (wrong.explanations.size() > 1 ? ", or another" : "");
    const auto found = std::ranges::find(by_mistake, says, [](const auto& entry) { return entry.first; });
    if (found == by_mistake.end())
      by_mistake.push_back({says, {one.name}});
    else
      found->second.push_back(one.name);
  }
  std::string text;
  for (const auto& [says, names] : by_mistake)
    text += "    " + joined(names, ", ") + (names.size() == 1 ? " alone: " : ", each alone: ") + says + "\n";
  return text.empty()
             ? ""
             : "No mistake explains all wrong cases. Some of them are explained by themselves:\n" + text;
}

/// The simplest case that is wrong.
const Evidence& first_wrong(const std::vector<Evidence>& cases, Precision precision) {
  const auto found = std::ranges::find_if(cases, [=](const Evidence& one) {
    const auto tolerances = one.yardstick->tolerances(precision);
    return one.yardstick->residual(*one.got, one.problem->right, all_arrays, tolerances).worst > 1;
  });
  return found == cases.end() ? cases.front() : *found;
}

}  // namespace

std::string sentence(const Explanation& explanation) {
  std::vector<std::string> sentences;
  for (const Mistake* mistake : explanation.hypothesis.mistakes) sentences.push_back(mistake->says);
  return joined(sentences, "; and ");
}

std::string to_text(const Diagnosis& diagnosis, const Submission& submission) {
  const std::vector<Evidence> cases = evidence_of(submission.answers);
  const Job& job = cases.front().problem->job;
  const Precision precision = std::max(diagnosis.forward.precision, diagnosis.backward.precision);
  std::string text = "Results of " + counted(std::ssize(cases), "case") + " on " +
                     counted(job.ranks, "rank") + ", " + name(job.placement) +
                     "; the largest error of a row, * for more than rounding:\n";
  text += error_table(cases, precision) + "\n";
  for (const auto& [says, arrays] : by_sentence(submission.layouts))
    text += "read: " + joined(arrays, ", ") + ": " + says + "\n";
  for (const std::string& line : diagnosis.conventions) text += "read: " + line + "\n";
  if (!submission.layouts.empty() || !diagnosis.conventions.empty()) text += "\n";
  text += pass_text("forward     ", diagnosis.forward, diagnosis.forward);
  text += pass_text("backward    ", diagnosis.backward, diagnosis.forward);
  if (!diagnosis.explained()) {
    if (!diagnosis.alone.empty()) text += "\n" + alone_text(diagnosis);
    text += "\n" + picture_of(first_wrong(cases, precision), precision);
  }
  if (diagnosis.right()) text += "\nRIGHT in these cases. " + not_tested_text(diagnosis);
  return text;
}

}  // namespace ring_attention::diagnose
