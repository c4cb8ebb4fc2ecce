// Wrong results to be diagnosed: every mistake, in both passes or in one.
#pragma once

#include <string>
#include <vector>

#include "diagnose/diagnosis.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::diagnose {

/// The entry of the list for a mutant: "lesson 05 step-too-few".
/// \throws Error when the list does not have it
inline const Mistake& mistake_of_mutant(const std::string& mutant) {
  for (const Mistake& mistake : all_mistakes())
    if ((", " + mistake.mutant + ",").find(", " + mutant + ",") != std::string::npos) return mistake;
  throw Error("mistakes.tsv has no mutant " + mutant);
}

/// A ring with these mistakes.
struct Trial {
  std::string name;
  Hypothesis forward, backward;
};

/// Each mistake; those of both passes also in one alone.
inline std::vector<Trial> trials_of(const std::vector<const Mistake*>& mistakes) {
  std::vector<Trial> trials;
  for (const Mistake* mistake : mistakes) {
    const Hypothesis wrong{{mistake}}, right;
    if (mistake->phase == Phase::forward) trials.push_back({mistake->id, wrong, right});
    if (mistake->phase == Phase::backward) trials.push_back({mistake->id, right, wrong});
    if (mistake->phase != Phase::both) continue;
    trials.push_back({mistake->id, wrong, wrong});
    trials.push_back({mistake->id + " (forward only)", wrong, right});
    trials.push_back({mistake->id + " (backward only)", right, wrong});
  }
  return trials;
}

/// Mistakes that public projects had, or that a first implementation makes.
inline const std::vector<std::string> common_mistakes{
    "steps-short",   "extra-step",       "not-sent",        "step-before",
    "v-stays",       "owner-wrong-way",  "mask-local",      "queries-local",
    "no-mask",       "causal-strict",    "remote-unmasked", "gqa-modulo",
    "no-scale",      "scale-all-heads",  "average",         "sum-normalised",
    "merge-base-2",  "swapped-sigmoid",  "o-not-rescaled",  "l-not-rescaled",
    "lse-added",     "lse-of-own-shard", "dkdv-stay-local", "hop-short",
    "dkdv-own-only", "no-delta",         "delta-own-shard", "lse-own-shard-backward",
    "dk-no-scale",   "dkdv-over-ranks"};

/// All pairs of them.
inline std::vector<Trial> pairs_of(const std::vector<std::string>& ids) {
  std::vector<Trial> trials;
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      Trial trial{ids[j] + " + " + ids[i], {}, {}};
      for (const std::string& id : {ids[j], ids[i]}) {
        const Mistake& mistake = mistake_named(id);
        if (mistake.in_forward()) trial.forward.mistakes.push_back(&mistake);
        if (mistake.in_backward()) trial.backward.mistakes.push_back(&mistake);
      }
      trials.push_back(trial);
    }
  return trials;
}

/// What a code in that type with these mistakes returns.
inline std::vector<Answer> answers_of(const Trial& trial, const std::vector<Problem>& problems,
                                      Precision precision) {
  std::vector<Answer> answers;
  for (const Problem& problem : problems) {
    const Forward forward = simulate_forward(problem, trial.forward.rules(), precision);
    Answer answer{&problem, simulate_backward(problem, trial.backward.rules(), forward, precision)};
    for (const Array array : of_forward) answer.arrays[array] = forward.arrays[array].clone();
    answers.push_back(std::move(answer));
  }
  return answers;
}

/// The problems of a job; all cases, or those that are named.
inline std::vector<Problem> problems_of(const Job& job, const std::vector<std::string>& only = {},
                                        std::uint64_t seed = 1) {
  std::vector<Problem> problems;
  for (const Case& one : ladder(job))
    if (only.empty() || std::ranges::find(only, one.name) != only.end())
      problems.emplace_back(one, job, seed);
  return problems;
}

/// How a trial went.
enum class Outcome { named, group, convention, hidden, wrong, unknown, invisible };
inline constexpr std::array outcome_names{"named", "group",   "convention", "hidden",
                                          "wrong", "unknown", "invisible"};

/// Does one pass say what the trial did? The set of explanations, or nothing to explain.
inline bool says(const Pass& pass, const std::vector<const Mistake*>& wanted) {
  for (const Explanation& one : pass.explanations) {
    std::vector<const Mistake*> got = one.hypothesis.mistakes;
    std::vector<const Mistake*> want = wanted;
    std::ranges::sort(got);
    std::ranges::sort(want);
    if (got == want) return true;
  }
  return false;
}

/// Are all explanations parts of what was wrong? Then the rest of it changes nothing: one mistake hides another.
inline bool is_less(const Pass& pass, const std::vector<const Mistake*>& wanted) {
  return std::ranges::all_of(pass.explanations, [&](const Explanation& one) {
    return std::ranges::all_of(one.hypothesis.mistakes, [&](const Mistake* mistake) {
      return std::ranges::find(wanted, mistake) != wanted.end();
    });
  });
}

inline Outcome outcome_of(const Trial& trial, const Diagnosis& diagnosis) {
  if (diagnosis.right()) return diagnosis.conventions.empty() ? Outcome::invisible : Outcome::convention;
  if (!diagnosis.explained()) return Outcome::unknown;
  const Pass &forward = diagnosis.forward, &backward = diagnosis.backward;
  const bool forward_ok = forward.state == State::right || says(forward, trial.forward.mistakes);
  // Forwards that are the same have the same backward; one of them stands for all.
  const bool same = forward_ok && forward.explanations.size() > 1 && backward.explanations.size() == 1 &&
                    trial.forward.mistakes == trial.backward.mistakes &&
                    says(forward, backward.explanations.front().hypothesis.mistakes);
  // A backward that is right for its forward, or does what autograd would do, has no mistake of its own.
  const bool nothing_more =
      !backward.explanations.empty() && (backward.explanations.front().is_derivative ||
                                         backward.explanations.front().hypothesis.mistakes.empty());
  const bool backward_ok =
      backward.state != State::named || nothing_more || same || says(backward, trial.backward.mistakes);
  if (!forward_ok || !backward_ok) {
    const bool less = is_less(forward, trial.forward.mistakes) && is_less(backward, trial.backward.mistakes);
    return less ? Outcome::hidden : Outcome::wrong;
  }
  const bool one = forward.explanations.size() <= 1 && backward.explanations.size() <= 1;
  return one ? Outcome::named : Outcome::group;
}

/// "gqa-modulo | gqa-first-kv", or the state.
inline std::string text_of(const Pass& pass) {
  std::string text;
  for (const Explanation& one : pass.explanations) {
    text += text.empty() ? "" : " | ";
    if (one.is_derivative) text += "(derivative)";
    if (one.hypothesis.mistakes.empty() && !one.is_derivative)
      text += one.given_own ? "(follows)" : "(right out)";
    for (std::size_t i = 0; i < one.hypothesis.mistakes.size(); ++i)
      text += (i > 0 ? " + " : "") + one.hypothesis.mistakes[i]->id;
  }
  if (!text.empty()) return text;
  constexpr std::array words{"absent", "right", "named", "unknown"};
  return words.at(static_cast<std::size_t>(pass.state));
}

}  // namespace ring_attention::diagnose
