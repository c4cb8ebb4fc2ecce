// confusion MODE RANKS PLACEMENT TYPE [ULYSSES] [CASE,...]: wrong results are simulated and diagnosed, and counted by how
// that went; each one that is not named first is printed.
//
// known: every mistake, in both passes and in one. unlisted: the same, after the mistake was taken out of the list.
// pairs: all pairs of 30 common mistakes. time: how long it takes to tell that no mistake, and no pair, explains results.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <sstream>

#include "diagnose/trials.hpp"

using namespace ring_attention;
using namespace ring_attention::diagnose;

namespace {

Precision precision_named(const std::string& word) {
  for (const Precision precision : all_precisions)
    if (name(precision) == word) return precision;
  return Precision::float32;
}

/// Of the processor: it runs other programs meanwhile.
double seconds_of(const auto& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// Against the time of the right results: dense attention in double, and a right ring in the type of the numbers.
void print_times(const Job& job, const std::vector<std::string>& only, Precision precision) {
  std::vector<Problem> problems;
  std::vector<Answer> wrong;
  const double right = seconds_of([&] {
    problems = problems_of(job, only);
    wrong = answers_of({"none", {}, {}}, problems, precision);
  });
  for (Answer& answer : wrong)
    for (const Array array : all_arrays)
      for (double& x : answer.arrays[array].view().elements()) x = -x;
  Options options;
  options.lists_not_tested = options.pairs = false;
  const double singles = seconds_of([&] { (void)diagnose::diagnose(wrong, options); });
  options.pairs = true;
  const double pairs = seconds_of([&] { (void)diagnose::diagnose(wrong, options); });
  std::printf("right results %.3f s, singles %.3f s, with pairs %.3f s\n", right, singles, pairs);
}

}  // namespace

int main(int argc, char** argv) {
  const auto word = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::string mode = word(1, "known");
  const Job job{std::atoi(word(2, "3").c_str()), placement_kind_named(word(3, "zigzag")),
                std::atoi(word(5, "1").c_str())};
  const Precision precision = precision_named(word(4, "float32"));
  std::vector<std::string> only;
  std::istringstream names(word(6, ""));
  for (std::string one; std::getline(names, one, ',');) only.push_back(one);
  if (mode == "time") {
    print_times(job, only, precision);
    return 0;
  }
  const std::vector<Problem> problems = problems_of(job, only);

  std::map<Outcome, int> count;
  const auto begin = std::chrono::steady_clock::now();
  for (const Trial& trial : mode == "pairs" ? pairs_of(common_mistakes) : trials_of(Options().mistakes)) {
    Options options;
    options.pairs = mode == "pairs";
    options.lists_not_tested = false;
    if (mode == "unlisted")
      std::erase_if(options.mistakes, [&](const Mistake* mistake) {
        return trial.forward.has(mistake) || trial.backward.has(mistake);
      });
    const Diagnosis diagnosis = diagnose::diagnose(answers_of(trial, problems, precision), options);
    const Outcome outcome = outcome_of(trial, diagnosis);
    ++count[outcome];
    if (outcome == (mode == "unlisted" ? Outcome::unknown : Outcome::named)) continue;
    std::string conventions;
    for (const std::string& one : diagnosis.conventions) conventions += " [" + one + "]";
    std::printf("%s\t%s\t%s / %s%s\t%s, %s\n", outcome_names[static_cast<std::size_t>(outcome)],
                trial.name.c_str(), text_of(diagnosis.forward).c_str(), text_of(diagnosis.backward).c_str(),
                conventions.c_str(), name(diagnosis.forward.precision).c_str(),
                name(diagnosis.backward.precision).c_str());
    std::fflush(stdout);
  }
  std::printf("# %s, %d ranks, %s, U = %d, %s:", mode.c_str(), job.ranks, name(job.placement).c_str(),
              job.ulysses, name(precision).c_str());
  for (const auto& [outcome, n] : count)
    std::printf(" %s %d", outcome_names[static_cast<std::size_t>(outcome)], n);
  std::printf("; %.0f s\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}
