// Lessons 00 and 02 on problems of the ladder: attention as its formula says it, and a ring that merges normalised results.
#pragma once

#include "diagnose/lesson_rings.hpp"

#define lesson idea_00
#include "00_attention/attention.hpp"
#undef lesson
#define LESSON_IDEA "02_online_softmax/online_softmax.hpp"
#define lesson idea_02
#include "02_online_softmax/lse_checks.hpp"
#undef lesson
#undef LESSON_IDEA

namespace ring_attention::diagnose {

/// out of lesson 00, which is on one device and has no backward.
inline Answer by_formula(const Trial& problem, const idea_00::Choices& rules) {
  const DiagnoseCase& c = problem.the_case;
  const auto rows = [&](const Tensor<double>& array, Index head) {
    idea_00::Rows<double> all;
    for (Index token = 0; token < c.tokens; ++token) {
      const auto row = array.view().row(0, head, token);
      all.emplace_back(row.begin(), row.end());
    }
    return all;
  };
  Answer answer{&problem, {}};
  answer.arrays[Array::out] = Tensor<double>(c.q());
  for (Index head = 0; head < c.heads; ++head) {
    const Index kv = head / c.group();
    const auto result =
        idea_00::attention(rows(problem.q, head), rows(problem.k, kv), rows(problem.v, kv), c.causal, rules);
    for (Index token = 0; token < c.tokens; ++token)
      std::ranges::copy(result.out[static_cast<std::size_t>(token)],
                        answer.arrays[Array::out].view().row(0, head, token).begin());
  }
  return answer;
}

/// The results of steps, each divided by its own l, merged by a form of lesson 02. The first one is the state; a step
/// without keys changes nothing.
class MergingEngine : public Engine<float> {
 public:
  MergingEngine(const Scoring& scoring, idea_02::lse_forms::Merge merge) : scoring_(scoring), merge_(merge) {}

  void begin(View<const float> q, const TokenRanges& ranges) {
    q_ = q;
    ranges_ = ranges;
    all_ = {Tensor<float>(q.shape()), Tensor<float>(q.shape().per_row(), negative_infinity<float>)};
  }
  void accumulate(const KeyValue<float>& kv, const Progress&) override {
    BlockwiseEngine<float> engine(scoring_);
    engine.begin(q_, ranges_);
    engine.accumulate(kv);
    const AttentionResult<float> step = engine.finish();
    for (Index row = 0; row < all_.lse.size(); ++row) {
      float& lse = all_.lse.data()[row];
      const float lse_b = step.lse.data()[row], before = lse;
      for (Index at = row * q_.shape().dim;
           at < (row + 1) * q_.shape().dim && lse_b != negative_infinity<float>; ++at) {
        float& out = all_.out.data()[at];
        const idea_02::lse_forms::Result b{step.out.data()[at], lse_b};
        const auto merged = before == negative_infinity<float> ? b : merge_({out, before}, b);
        out = merged.out;
        lse = merged.lse;
      }
    }
  }
  [[nodiscard]] AttentionResult<float> finish() override { return std::move(all_); }

 private:
  Scoring scoring_;
  idea_02::lse_forms::Merge merge_;
  View<const float> q_;
  TokenRanges ranges_;
  AttentionResult<float> all_;
};

}  // namespace ring_attention::diagnose
