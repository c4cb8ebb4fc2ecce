// ladder [RANKS] [PLACEMENT]: which cases are needed? Each mistake, in both passes or in one, has a fingerprint: its
// results. Two of them, or one and the right results, are told apart by a case in which some row differs by more than
// rounding. Cases are taken greedily: next the one that tells most of the pairs apart that are left.
#include <cstdio>
#include <cstdlib>
#include <set>

#include "diagnose/trials.hpp"

using namespace ring_attention;
using namespace ring_attention::diagnose;

namespace {

using TwoTrials = std::pair<std::size_t, std::size_t>;

/// The pairs of fingerprints that a case tells apart; number 0 is right.
std::set<TwoTrials> told_apart(const Problem& problem, const std::vector<Trial>& trials) {
  const Yardstick yardstick(problem);
  const PerArray tolerances = yardstick.tolerances(Precision::float32);
  std::vector<Arrays> fingerprints;
  for (const Trial& trial : trials) {
    const Forward forward = simulate_forward(problem, trial.forward.rules(), Precision::float32);
    fingerprints.push_back(simulate_backward(problem, trial.backward.rules(), forward, Precision::float32));
    for (const Array array : of_forward) fingerprints.back()[array] = forward.arrays[array].clone();
  }
  std::set<TwoTrials> apart;
  for (std::size_t i = 0; i < trials.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (!(yardstick.residual(fingerprints[i], fingerprints[j], all_arrays, tolerances).worst <= 1))
        apart.emplace(i, j);
  return apart;
}

}  // namespace

int main(int argc, char** argv) {
  const Job job{argc > 1 ? std::atoi(argv[1]) : 3, placement_kind_named(argc > 2 ? argv[2] : "zigzag")};
  std::vector<Trial> trials = trials_of(Options().mistakes);
  trials.insert(trials.begin(), Trial{"right", {}, {}});
  std::vector<std::pair<std::string, std::set<TwoTrials>>> cases;
  std::set<TwoTrials> left;
  for (const Problem& problem : problems_of(job)) {
    cases.emplace_back(problem.the_case.name, told_apart(problem, trials));
    left.insert(cases.back().second.begin(), cases.back().second.end());
  }
  const std::size_t all = trials.size() * (trials.size() - 1) / 2;
  std::printf("%d fingerprints, %d pairs of them; %d pairs are the same in every case\n",
              static_cast<int>(trials.size()), static_cast<int>(all), static_cast<int>(all - left.size()));
  while (!left.empty()) {
    const auto gain = [&](const auto& one) {
      return std::ranges::count_if(left, [&](const TwoTrials& pair) { return one.second.contains(pair); });
    };
    const auto best = std::ranges::max_element(cases, {}, gain);
    std::erase_if(left, [&](const TwoTrials& pair) { return best->second.contains(pair); });
    std::printf("%-11s %6d pairs are left\n", best->first.c_str(), static_cast<int>(left.size()));
  }
}
