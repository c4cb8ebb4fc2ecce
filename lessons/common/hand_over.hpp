/// \file
/// `hand_over`: gives the arrays of an attention to the judge of an exercise, which has its mistake named.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/random_problem.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {

/// Which case of `diagnose` the problem is like, and whose arrays these are.
struct HandedOver {
  std::string of_case;
  PlacementKind placement = PlacementKind::contiguous;
  int ranks = 1, rank = 0, ulysses = 1;
};

/// The folder of the judge; null where no judge asks.
[[nodiscard]] inline const char* hand_over_folder() { return std::getenv("RING_ATTENTION_HAND_OVER"); }

/// Writes the rank's arrays for lessons/name_mistake.py, if the judge asks: a line for each array.
/// \param ranges   the tokens of the arrays
/// \param results  out, lse, dq, dk, dv, as far as there are any, and the bias or the sinks of the problem
template <class T>
void hand_over(const HandedOver& job, const RandomProblem& problem, const TokenRanges& ranges,
               std::vector<std::pair<std::string, View<const T>>> results) {
  if (hand_over_folder() == nullptr) return;
  std::vector<Tensor<T>> inputs;
  for (const auto& [name, stream] :
       {std::pair("q", 0), std::pair("k", 1), std::pair("v", 2), std::pair("dout", 3)}) {
    const Shape& shape = stream == 1 || stream == 2 ? problem.kv : problem.q;
    inputs.push_back(problem.make<T>(shape, static_cast<std::uint64_t>(stream), ranges));
    results.emplace_back(name, inputs.back().view());
  }
  std::ofstream file(format("%s/%s.%d.%d", hand_over_folder(), job.of_case.c_str(), job.ulysses, job.rank));
  file << format("%s %d %s %d\n", job.of_case.c_str(), job.ranks, name(job.placement).c_str(), job.ulysses);
  for (const auto& [name, array] : results) {
    const Shape& shape = array.shape();
    file << format("%s %td %td %td", name.c_str(), shape.heads, shape.seq, shape.dim);
    for (const T x : array.elements()) file << format(" %a", static_cast<double>(x));
    file << "\n";
  }
}

}  // namespace ring_attention
