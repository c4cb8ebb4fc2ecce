// Wrong biases, dropouts and sinks that look right, in engines of their own.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "support/run.hpp"
#include "support/small_engine.hpp"

namespace ring_attention::test {

/// The check that the right engines, here the readable ones, pass on a ring, and that each mutant must fail.
template <class T, class Forward = BlockwiseEngine<T>, class Backward = BlockwiseBackward<T>>
TeamRun<T> both_ways(const GradientProblem<T>& problem, int ranks) {
  return run(problem, {.rings = ranks}, device_of<T, Forward, Backward>(problem.what().block));
}
template <class T, class Forward = BlockwiseEngine<T>, class Backward = BlockwiseBackward<T>>
testing::AssertionResult both_ways_agree(const GradientProblem<T>& problem, int ranks) {
  return agrees(both_ways<T, Forward, Backward>(problem, ranks), problem);
}

// ---- rules of a small engine ------------------------------------------------------------------------------

/// The dropped logits are -inf: the softmax of those that are left is another operation.
struct DropsBeforeSoftmax : RightRules {
  template <class T>
  static void drop(T& p, T& l, T factor) {
    if (factor != 0) return;
    l -= p;
    p = 0;
  }
};

/// l is the sum of the kept terms.
struct DropsTheSum : RightRules {
  template <class T>
  static void drop(T& p, T& l, T factor) {
    if (factor == 0) l -= p;
    p *= factor;
  }
};

struct ScalesTwice : RightRules {
  template <class T>
  static void drop(T& p, T&, T factor) {
    p *= factor * factor;
  }
};

struct NoScale : RightRules {
  template <class T>
  static void drop(T& p, T&, T factor) {
    if (factor == 0) p = 0;
  }
};

// ---- the backward -----------------------------------------------------------------------------

/// A dropped pair has no gradient at all: the usual mistake. All other pairs are as they should be.
template <class T>
class MasksGradientOfScores : public BackwardEngine<T> {
 public:
  MasksGradientOfScores(const Scoring& scoring, Index block) : scoring_(scoring), block_(block) {}

  void begin(const BackwardInputs<T>& inputs, const TokenRanges& ranges) {
    inputs_ = inputs;
    ranges_ = ranges;
    delta_ = row_dot(inputs.grad_out, inputs.out);
    grad_q_ = Tensor<T>(inputs.q.shape());
    grad_bias_ = Tensor<T>(inputs.terms.bias.shape());
  }
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient, const Progress& = {}) override {
    const Index group = require_attention_shapes(inputs_.q.shape(), kv.k.shape(), kv.v.shape());
    for_each_tile(inputs_.q.shape(), ranges_, kv.ranges, block_, group,
                  [&](const Tile& tile) { differentiate(tile, kv, gradient); });
  }
  [[nodiscard]] Tensor<T> finish() override { return std::move(grad_q_); }
  [[nodiscard]] TermGradients<T> term_gradients() override { return {{std::move(grad_bias_)}}; }

 private:
  void differentiate(const Tile& tile, const KeyValue<T>& kv, const KeyValueGradient<T>& gradient) {
    Matrix<T> p, factors;
    if (!score_tile(scoring_, tile, inputs_.q, kv.k, inputs_.terms.bias, p)) return;
    dropout_tile(scoring_.dropout, tile, factors);
    const auto grad_out = tile.of_queries(inputs_.grad_out);
    Matrix<T> ds = grad_out * tile.of_keys(kv.v).transpose();
    for (Index i = 0; i < p.rows(); ++i) {
      const Index row = tile.first_query + i;
      const T lse = inputs_.lse(tile.batch, tile.head, row),
              delta = delta_.view()(tile.batch, tile.head, row);
      for (Index j = 0; j < p.cols(); ++j) {
        p(i, j) = rescale(p(i, j), lse);
        ds(i, j) = factors(i, j) == 0 ? T{0} : p(i, j) * (factors(i, j) * ds(i, j) - delta);
      }
    }
    const auto scale = static_cast<T>(scoring_.scale);
    tile.of_keys(gradient.v) += factors.cwiseProduct(p).transpose() * grad_out;
    tile.of_keys(gradient.k) += scale * ds.transpose() * tile.of_queries(inputs_.q);
    tile.of_queries(grad_q_.view()) += scale * ds * tile.of_keys(kv.k);
    if (grad_bias_.size() > 0) tile.of_pairs(grad_bias_.view()) += ds;
  }

  Scoring scoring_;
  Index block_;
  BackwardInputs<T> inputs_;
  TokenRanges ranges_;
  Tensor<T> delta_, grad_q_, grad_bias_;
};

// ---- scorings that change on the way -------------------------------------------------------------------

/// A new engine for every step, with the scoring that Change makes of the right one; states are merged as on arrival.
template <class T, class Change>
class EveryStepForward : public Engine<T> {
 public:
  explicit EveryStepForward(const Scoring& scoring, Index block = 64) : scoring_(scoring), block_(block) {}

  void begin(View<const T> q, const TokenRanges& ranges, View<const T> bias) {
    q_ = q;
    ranges_ = ranges;
    bias_ = bias;
    partial_ = Partial<T>::empty(q.shape());
  }
  void accumulate(const KeyValue<T>& kv, const Progress& = {}) override {
    const Scoring scoring = Change::of(scoring_, step_++, ranges_);
    BlockwiseEngine<T> engine(scoring, block_);
    engine.begin(q_, ranges_, bias_);
    engine.accumulate(kv);
    Partial<T> state = Partial<T>::empty(q_.shape());
    merge(state, engine.to_partial());
    if (Change::adds_sinks_in_every_step) add_sinks(state, scoring_.sinks);
    merge(partial_, state);
  }
  [[nodiscard]] AttentionResult<T> finish() override {
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
class EveryStepBackward : public BackwardEngine<T> {
 public:
  explicit EveryStepBackward(const Scoring& scoring, Index block = 64) : scoring_(scoring), block_(block) {}

  void begin(const BackwardInputs<T>& forward, const TokenRanges& ranges) {
    forward_ = forward;
    ranges_ = ranges;
    grad_q_ = Tensor<T>(forward.q.shape());
    grad_bias_ = Tensor<T>(forward.terms.bias.shape());
  }
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient, const Progress& = {}) override {
    BlockwiseBackward<T> engine(Change::of(scoring_, step_++, ranges_), block_);
    engine.begin(forward_, ranges_);
    engine.accumulate(kv, gradient);
    add(grad_q_, engine.finish());
    add(grad_bias_, engine.term_gradients().bias);
  }
  [[nodiscard]] Tensor<T> finish() override { return std::move(grad_q_); }
  [[nodiscard]] TermGradients<T> term_gradients() override { return {{std::move(grad_bias_)}}; }

 private:
  static void add(Tensor<T>& into, const Tensor<T>& part) {
    for (Index i = 0; i < into.size(); ++i) into.data()[i] += part.data()[i];
  }
  Scoring scoring_;
  Index block_;
  BackwardInputs<T> forward_;
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
