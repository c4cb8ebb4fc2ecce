/// \file
/// `MergingEngine`: the softmax of each step, row by row, and the merge of steps, with the rules that can be wrong.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "ring_attention/attention/bias.hpp"
#include "ring_attention/attention/partial.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/sink.hpp"
#include "ring_attention/attention/softmax.hpp"

namespace ring_attention {

/// What a merge multiplies the old and the new o and l by, so that both have one maximum.
struct MergeFactors {
  float o, l, new_o, new_l;
};
/// What a merge of normalised results multiplies the old and the new out by, and the lse of both.
struct MergeWeights {
  float out, new_out, lse;
};

/// The rules of a merge: right where a member is null.
struct MergeRules {
  /// The maximum of the scores of a step, from the right one.
  float (*maximum)(float m) = nullptr;
  /// e^(-inf - (-inf)) is 0.
  bool guarded = true;
  /// Changes the factors of a step that moves from the maximum `m` to the maximum `to`.
  void (*factors)(MergeFactors& right, float m, float to) = nullptr;
  /// The steps are normalised, and weighed by this. \param lse  the right one of both
  MergeWeights (*weights)(float old_lse, float new_lse, float lse) = nullptr;

  [[nodiscard]] bool any() const {
    return maximum != nullptr || !guarded || factors != nullptr || weights != nullptr;
  }
};

class MergingEngine : public Engine<float> {
 public:
  /// \param right  has begun on the same queries; it computes too, and its result is not used: observers see its steps
  MergingEngine(std::unique_ptr<Engine<float>> right, const MergeRules& rules, Scoring scoring,
                View<const float> q, TokenRanges queries, View<const float> bias)
      : right_(std::move(right)),
        rules_(rules),
        scoring_(std::move(scoring)),
        q_(q),
        bias_(bias),
        ranges_(std::move(queries)),
        queries_(positions(ranges_)) {}

  void accumulate(const KeyValue<float>& kv, const Progress& progress = {}) override {
    right_->accumulate(kv, progress);
    const Shape& q = q_.shape();
    const Index group = require_attention_shapes(q, kv.k.shape(), kv.v.shape());
    const bool first = state_.o.size() == 0;
    if (first) state_ = Partial<float>::empty(q.with_dim(kv.v.shape().dim));
    if (!scoring_.mask.any_visible(ranges_, kv.ranges)) return;
    const std::vector<Index> keys = positions(kv.ranges);
    for (Index b = 0; b < q.batch; ++b)
      for (Index h = 0; h < q.heads; ++h)
        for (Index i = 0; i < q.seq; ++i) {
          std::vector<float> o(static_cast<std::size_t>(kv.v.shape().dim));
          const SoftmaxState<float> added = of_step(b, h, h / group, i, kv, keys, o);
          float &m = state_.m.view()(b, h, i), &l = state_.l.view()(b, h, i);
          SoftmaxState<float> state{m, l};
          merge(state, state_.o.view().row(b, h, i), added, o);
          m = state.m;
          l = state.l;
        }
  }
  [[nodiscard]] AttentionResult<float> finish() override {
    (void)right_->finish();
    add_sinks(state_, scoring_.sinks);
    return ring_attention::finish(std::move(state_));
  }

 private:
  /// (m, l) of query i over the keys of a step. \param o  zeros; becomes the sum e^(s - m) v
  SoftmaxState<float> of_step(Index b, Index h, Index kv_head, Index i, const KeyValue<float>& kv,
                              const std::vector<Index>& keys, std::vector<float>& o) const {
    const Index query = queries_[static_cast<std::size_t>(i)];
    std::vector<float> scores(keys.size(), negative_infinity<float>);
    float m = negative_infinity<float>;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      if (!scoring_.mask.allowed(query, keys[j])) continue;
      const auto k = kv.k.row(b, kv_head, static_cast<Index>(j)), q = q_.row(b, h, i);
      float product = 0;
      for (std::size_t d = 0; d < k.size(); ++d) product += q[d] * k[d];
      scores[j] = scoring_.capped(static_cast<float>(scoring_.scale) * product);
      if (scoring_.adds()) scores[j] += static_cast<float>(scoring_.added(h, query, keys[j]));
      if (bias_.size() > 0) scores[j] += bias_row(bias_, b, h, i)[keys[j]];
      m = std::max(m, scores[j]);
    }
    if (rules_.maximum != nullptr) m = rules_.maximum(m);
    SoftmaxState<float> state{m, 0};
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const float p = moved(scores[j], m);
      state.l += p;
      const auto v = kv.v.row(b, kv_head, static_cast<Index>(j));
      for (std::size_t d = 0; d < v.size(); ++d) o[d] += p * v[d];
    }
    return state;
  }
  void merge(SoftmaxState<float>& state, std::span<float> o, const SoftmaxState<float>& added,
             const std::vector<float>& new_o) const {
    MergeFactors by{0, 0, 1, 1};
    SoftmaxState<float> merged = added;
    if (rules_.weights != nullptr) {
      if (added.l == 0) return;
      MergeWeights weights{0, 1, added.lse()};
      if (state.l > 0)
        weights = rules_.weights(state.lse(), added.lse(), ring_attention::merge(state, added).lse());
      by = {weights.out, 0, weights.new_out / added.l, 0};
      merged = {weights.lse, 1};
    } else if (state.l > 0 || std::isnan(state.l)) {
      merged.m = std::max(state.m, added.m);
      const float old_factor = moved(state.m, merged.m), new_factor = moved(added.m, merged.m);
      by = {old_factor, old_factor, new_factor, new_factor};
      if (rules_.factors != nullptr) rules_.factors(by, state.m, merged.m);
      merged.l = by.l * state.l + by.new_l * added.l;
    }
    for (std::size_t d = 0; d < o.size(); ++d) o[d] = by.o * o[d] + by.new_o * new_o[d];
    state = merged;
  }
  [[nodiscard]] float moved(float from, float to) const {
    return rules_.guarded ? rescale(from, to) : std::exp(from - to);
  }

  std::unique_ptr<Engine<float>> right_;
  MergeRules rules_;
  Scoring scoring_;
  View<const float> q_, bias_;
  TokenRanges ranges_;
  std::vector<Index> queries_;
  Partial<float> state_;
};

}  // namespace ring_attention
