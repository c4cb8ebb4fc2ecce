// Wrong biases, dropouts and sinks that look right. Each is one replaced parameter of the readable engine.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "support/backward_runs.hpp"

namespace ring_attention::test {

/// The readable engines on a ring, forward and backward.
template <class T, class Forward = BlockwiseEngine<T>, class Backward = BlockwiseBackward<T>>
struct BothWays {
  BothWays(const GradientProblem<T>& problem, int ranks)
      : forward(run_loopback<T, StandardRules, LoopbackTransport, Forward>(problem.forward, ranks)),
        backward(run_loopback_backward<T, Backward>(problem, forward)),
        gradients(gathered(backward, problem)) {}

  std::vector<RankResult<T>> forward;
  std::vector<RankGradients<T>> backward;
  Gradients<T> gradients;
};

/// The check that the right engines pass and each mutant must fail.
template <class T, class Forward = BlockwiseEngine<T>, class Backward = BlockwiseBackward<T>>
testing::AssertionResult both_ways_agree(const GradientProblem<T>& problem, int ranks) {
  const BothWays<T, Forward, Backward> got(problem, ranks);
  if (const auto verdict = all_agree(got.forward, problem.forward); !verdict) return verdict;
  return agrees(got.gradients, problem);
}

/// The same for the fast engines.
template <class T>
testing::AssertionResult fast_agrees(const GradientProblem<T>& problem, int ranks) {
  return both_ways_agree<T, CpuEngine<T>, CpuBackward<T>>(problem, ranks);
}

// ---- rules of the forward ------------------------------------------------------------------------------

/// The dropped logits are -inf: the softmax of those that are left is another operation.
struct DropsBeforeSoftmax : StandardRules {
  template <class T>
  static void drop(T& p, T& l, T factor) {
    if (factor != 0) return;
    l -= p;
    p = 0;
  }
};

/// l is the sum of the kept terms.
struct DropsTheSum : StandardRules {
  template <class T>
  static void drop(T& p, T& l, T factor) {
    if (factor == 0) l -= p;
    p *= factor;
  }
};

struct ScalesTwice : StandardRules {
  template <class T>
  static void drop(T& p, T&, T factor) {
    p *= factor * factor;
  }
};

struct NoScale : StandardRules {
  template <class T>
  static void drop(T& p, T&, T factor) {
    if (factor == 0) p = 0;
  }
};

// ---- rules of the backward -----------------------------------------------------------------------------

/// A dropped pair has no gradient at all: the usual mistake.
struct MasksGradientOfScores : StandardGradientRules {
  template <class T>
  static T score_gradient(T p, T grad_p, T delta, T factor) {
    return factor == 0 ? T{0} : p * (factor * grad_p - delta);
  }
};

// ---- scorings that change on the way -------------------------------------------------------------------

/// A new engine for every step, with the scoring that Change makes of the right one; states are merged as on arrival.
template <class T, class Change>
class EveryStepForward {
 public:
  using value_type = T;
  explicit EveryStepForward(const Scoring& scoring, Index block = 64) : scoring_(scoring), block_(block) {}

  void begin(View<const T> q, const TokenRanges& ranges, View<const T> bias) {
    q_ = q;
    ranges_ = ranges;
    bias_ = bias;
    partial_ = Partial<T>::empty(q.shape());
  }
  void accumulate(const KeyValue<T>& kv, const Progress&) {
    const Scoring scoring = Change::of(scoring_, step_++, ranges_);
    BlockwiseEngine<T> engine(scoring, block_);
    engine.begin(q_, ranges_, bias_);
    engine.accumulate(kv);
    Partial<T> state = Partial<T>::empty(q_.shape());
    merge(state, engine.to_partial());
    if (Change::adds_sinks_in_every_step) add_sinks(state, scoring_.sinks);
    merge(partial_, state);
  }
  AttentionResult<T> finish() {
    if (!Change::adds_sinks_in_every_step) add_sinks(partial_, scoring_.sinks);
    return ring_attention::finish(std::move(partial_));
  }

 private:
  Scoring scoring_;
  Index block_;
  View<const T> q_, bias_;
  TokenRanges ranges_;
  Partial<T> partial_;
  int step_ = 0;
};

/// The same for the backward. dQ and dbias are summed.
template <class T, class Change>
class EveryStepBackward {
 public:
  using value_type = T;
  explicit EveryStepBackward(const Scoring& scoring, Index block = 64) : scoring_(scoring), block_(block) {}

  void begin(const ForwardResult<T>& forward, const TokenRanges& ranges) {
    forward_ = forward;
    ranges_ = ranges;
    grad_q_ = Tensor<T>(forward.q.shape());
    grad_bias_ = Tensor<T>(forward.bias.shape());
  }
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient, const Progress&) {
    BlockwiseBackward<T> engine(Change::of(scoring_, step_++, ranges_), block_);
    engine.begin(forward_, ranges_);
    engine.accumulate(kv, gradient);
    add(grad_q_, engine.finish());
    add(grad_bias_, engine.bias_gradient());
  }
  Tensor<T> finish() { return std::move(grad_q_); }
  Tensor<T> bias_gradient() { return std::move(grad_bias_); }

 private:
  static void add(Tensor<T>& into, const Tensor<T>& part) {
    for (Index i = 0; i < into.size(); ++i) into.data()[i] += part.data()[i];
  }
  Scoring scoring_;
  Index block_;
  ForwardResult<T> forward_;
  TokenRanges ranges_;
  Tensor<T> grad_q_, grad_bias_;
  int step_ = 0;
};

/// Right: nothing changes.
struct NoChange {
  static constexpr bool adds_sinks_in_every_step = false;
  static Scoring of(const Scoring& scoring, int, const TokenRanges&) { return scoring; }
};

/// A seed for each rank, as a generator for each process has.
struct SeedPerRank : NoChange {
  static Scoring of(Scoring scoring, int, const TokenRanges& queries) {
    scoring.dropout.seed += queries.empty() ? 0 : static_cast<std::uint64_t>(queries.front().begin);
    return scoring;
  }
};

/// A state of the generator is kept for each step: the mask depends on the number of ranks.
struct SeedPerStep : NoChange {
  static Scoring of(Scoring scoring, int step, const TokenRanges&) {
    scoring.dropout.seed += static_cast<std::uint64_t>(step);
    return scoring;
  }
};

/// And the backward reads the states in the reverse order.
template <int ranks>
struct SeedPerStepReversed : NoChange {
  static Scoring of(const Scoring& scoring, int step, const TokenRanges& queries) {
    return SeedPerStep::of(scoring, ranks - 1 - step, queries);
  }
};

/// The sink is merged with every parcel that arrives.
struct SinkEveryStep : NoChange {
  static constexpr bool adds_sinks_in_every_step = true;
};

}  // namespace ring_attention::test
