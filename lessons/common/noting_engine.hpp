/// \file
/// `NotingEngine`: notes whose K,V an engine is given, and when the rank computes.
#pragma once

#include "cli/random_problem.hpp"
#include "common/mpi_counter.hpp"
#include "ring_attention/attention/engine.hpp"

namespace ring_attention {

/// Stands between a ring and its engine. It notes each step, then the engine computes.
template <class Inner>
class NotingEngine {
 public:
  explicit NotingEngine(Inner& engine) : engine_(engine) {}

  void accumulate(const KeyValue<float>& kv, const Progress& progress) {
    steps_.push_back({kv.ranges, kv.k.size() > 0 ? *kv.k.data() : 0});
    const mpi_counter::Computing computing;
    engine_.accumulate(kv, progress);
  }
  void accumulate(const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress) {
    const mpi_counter::Computing computing;
    engine_.accumulate(kv, gradient, progress);
  }

  /// One entry a step: the rank whose K,V these are, by their positions and by their first number. -1: of no rank.
  [[nodiscard]] std::vector<Index> owners(const RandomProblem& problem, const Placement& placement,
                                          const Ring& ring) const {
    std::vector<Index> owners;
    for (const Step& step : steps_) {
      Index found = -1;
      for (int i = 0; i < ring.size && found < 0;
           ++i) {  // ranks without tokens look alike: the one in turn first
        const int owner = ring.owner(static_cast<int>(owners.size()) + i);
        if (step == expected(problem, placement.ranges(owner))) found = owner;
      }
      owners.push_back(found);
    }
    return owners;
  }

 private:
  struct Step {
    TokenRanges ranges;
    float first_key;  // 0 without tokens
    friend bool operator==(const Step&, const Step&) = default;
  };
  static Step expected(const RandomProblem& problem, const TokenRanges& ranges) {
    if (ranges.empty()) return {ranges, 0};
    return {ranges, *problem.make<float>(problem.kv, 1, {ranges[0].slice(0, 1)}).data()};
  }

  Inner& engine_;
  std::vector<Step> steps_;
};

/// At step t rank r must compute with the K,V of rank (r - t) mod N.
[[nodiscard]] inline bool in_turn(const std::vector<Index>& owners, const Ring& ring) {
  std::vector<Index> expected;
  for (int step = 0; step < ring.steps(); ++step) expected.push_back(ring.owner(step));
  return owners == expected;
}

}  // namespace ring_attention
