/// \file
/// `NotingEngine`, `NotingBackward`: stand between a ring and its engine, and note the steps.
#pragma once

#include "common/mpi_counter.hpp"
#include "common/random_problem.hpp"
#include "ring_attention/attention/backward_engine.hpp"

namespace ring_attention {

/// Keys that an engine was given: their positions, and the first number (0 without tokens).
struct GivenKeys {
  TokenRanges ranges;
  float first;
  friend bool operator==(const GivenKeys&, const GivenKeys&) = default;
};

/// One entry a step: the rank whose keys these are. -1: of no rank.
[[nodiscard]] inline std::vector<Index> owners_of(const std::vector<GivenKeys>& steps,
                                                  const RandomProblem& problem, const Placement& placement,
                                                  const Ring& ring) {
  const auto are_of = [&](const GivenKeys& keys, int owner) {
    const TokenRanges ranges = placement.ranges(owner);
    if (ranges.empty()) return keys == GivenKeys{ranges, 0};
    return keys == GivenKeys{ranges, *problem.make<float>(problem.kv, 1, {ranges[0].slice(0, 1)}).data()};
  };
  std::vector<Index> owners;
  for (const GivenKeys& keys : steps) {
    const int in_turn =
        ring.owner(static_cast<int>(owners.size()));  // tried last: ranks without tokens look alike
    owners.push_back(-1);
    for (int rank = 0; rank < ring.size; ++rank)
      if (are_of(keys, rank)) owners.back() = rank;
    if (are_of(keys, in_turn)) owners.back() = in_turn;
  }
  return owners;
}

/// At step t rank r must compute with the K,V of rank (r - t) mod N.
[[nodiscard]] inline bool in_turn(const std::vector<Index>& owners, const Ring& ring) {
  std::vector<Index> expected;
  for (int step = 0; step < ring.steps(); ++step) expected.push_back(ring.owner(step));
  return owners == expected;
}

/// What is noted of the steps of a ring.
class StepNotes {
 public:
  virtual ~StepNotes() = default;
  /// One step. Calls `compute`, which gives these keys to the engine.
  virtual void note(const KeyValue<float>& kv, const std::function<void()>& compute) = 0;
};

/// Whose K,V the engine is given, and when the rank computes.
class NotedSteps : public StepNotes {
 public:
  void note(const KeyValue<float>& kv, const std::function<void()>& compute) override {
    steps_.push_back({kv.ranges, kv.k.size() > 0 ? *kv.k.data() : 0});
    mpi_counter::computing(true);
    compute();
    mpi_counter::computing(false);
  }
  [[nodiscard]] const std::vector<GivenKeys>& steps() const { return steps_; }

 private:
  std::vector<GivenKeys> steps_;
};

class NotingEngine : public Engine<float> {
 public:
  NotingEngine(Engine<float>& engine, StepNotes& notes) : engine_(engine), notes_(notes) {}

  void accumulate(const KeyValue<float>& kv, const Progress& progress) override {
    notes_.note(kv, [&] { engine_.accumulate(kv, progress); });
  }
  [[nodiscard]] AttentionResult<float> finish() override { return engine_.finish(); }

 private:
  Engine<float>& engine_;
  StepNotes& notes_;
};
class NotingBackward : public BackwardEngine<float> {
 public:
  NotingBackward(BackwardEngine<float>& engine, StepNotes& notes) : engine_(engine), notes_(notes) {}

  void accumulate(const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress) override {
    notes_.note(kv, [&] { engine_.accumulate(kv, gradient, progress); });
  }
  [[nodiscard]] Tensor<float> finish() override { return engine_.finish(); }
  [[nodiscard]] TermGradients<float> term_gradients() override { return engine_.term_gradients(); }

 private:
  BackwardEngine<float>& engine_;
  StepNotes& notes_;
};

}  // namespace ring_attention
