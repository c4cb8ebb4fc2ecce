// Lesson 08, NUMBERS.md: a ring that keeps some of its partial results in bf16 or fp16. Arithmetic stays in float.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "ring_attention/attention/partial.hpp"
#include "ring_attention/parallel/cpu_device.hpp"

namespace ring_attention::lesson_08 {

/// A type to keep numbers in: a number is sign, `digits` significant bits, and an exponent.
struct NumberType {
  const char* name;
  int digits, least_exponent;  // of the smallest normal number
  float largest;

  /// The largest relative error of rounding a normal number once.
  [[nodiscard]] double unit() const { return std::ldexp(1.0, -digits); }
};
inline constexpr NumberType bf16{"bf16", 8, -126, 0x1.fep127F}, fp16{"fp16", 11, -14, 65504};

/// The nearest number of the type, ties to even; beyond the largest one infinity. Infinities and NaN stay.
inline float rounded(float x, const NumberType& type) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), type.least_exponent);
  const float spacing = std::ldexp(1.0F, exponent - type.digits + 1);
  const float nearest = std::nearbyint(x / spacing) * spacing;
  if (!(std::abs(nearest) <= type.largest)) return std::copysign(std::numeric_limits<float>::infinity(), x);
  return nearest;
}

/// What is kept in the type, rounded after each step of a rank.
struct Kept {
  NumberType type = bf16;
  bool parts = false;  ///< a step's own out, and its own dQ, dK and dV, before they are merged or added
  bool out = false;    ///< the out of all steps so far
  bool lse = false;    ///< the lse of all steps so far
  bool state = false;  ///< o, m and l: of a step, and of all steps so far
  bool dq = false;     ///< the dQ of all steps so far
  bool dkdv = false;   ///< the dK,dV that travel

  void round(std::span<float> numbers) const {
    std::ranges::transform(numbers, numbers.begin(), [&](float x) { return rounded(x, type); });
  }
};

/// A forward that computes each step by itself, and merges it into a state that is kept in the type.
class RoundedForward : public Engine<float> {
 public:
  RoundedForward(const Scoring& scoring, View<const float> q, const TokenRanges& ranges, const Kept& kept)
      : engine_(scoring), q_(q), ranges_(ranges), kept_(kept), state_(Partial<float>::empty(q.shape())) {}

  void accumulate(const KeyValue<float>& kv, const Progress& progress = {}) override {
    engine_.begin(q_, ranges_);
    engine_.accumulate(kv, progress);
    Partial<float> step = engine_.to_partial();
    if (kept_.state) round_state(step);
    if (kept_.parts) step = normalised(std::move(step), true, false);
    merge(state_, step);
    if (kept_.state) round_state(state_);
    if (kept_.out || kept_.lse) state_ = normalised(std::move(state_), kept_.out, kept_.lse);
  }
  [[nodiscard]] AttentionResult<float> finish() override { return ring_attention::finish(std::move(state_)); }

 private:
  /// The same attention as (out, lse, 1), a state as FlashAttention's kernels return it.
  [[nodiscard]] Partial<float> normalised(Partial<float>&& state, bool round_out, bool round_lse) const {
    AttentionResult<float> result = ring_attention::finish(std::move(state));
    if (round_out) kept_.round(result.out.view().elements());
    if (round_lse) kept_.round(result.lse.view().elements());
    Partial<float> same{std::move(result.out), std::move(result.lse), Tensor<float>(q_.shape().per_row())};
    std::ranges::transform(same.m.view().elements(), same.l.data(),
                           [](float lse) { return softmax_state(lse).l; });
    return same;
  }
  /// m is the score of a key, which is exact in the type where scores are computed in it. So o and l belong to the rounded m.
  void round_state(Partial<float>& state) const {
    const View<float> o = state.o;
    for (Index b = 0; b < o.shape().batch; ++b)
      for (Index h = 0; h < o.shape().heads; ++h)
        for (Index s = 0; s < o.shape().seq; ++s) {
          float& m = state.m.view()(b, h, s);
          const float in_type = rounded(m, kept_.type), factor = rescale(m, in_type);
          for (float& x : o.row(b, h, s)) x *= factor;
          state.l.view()(b, h, s) *= factor;
          m = in_type;
        }
    kept_.round(o.elements());
    kept_.round(state.l.view().elements());
  }

  CpuEngine<float> engine_;
  View<const float> q_;
  TokenRanges ranges_;
  Kept kept_;
  Partial<float> state_;
};

/// A backward that computes each step by itself, and adds it to a dQ that is kept in the type.
class RoundedBackward : public BackwardEngine<float> {
 public:
  RoundedBackward(const Scoring& scoring, const BackwardInputs<float>& inputs, const TokenRanges& ranges,
                  const Kept& kept)
      : engine_(scoring), inputs_(inputs), ranges_(ranges), kept_(kept), dq_(inputs.q.shape()) {}

  void accumulate(const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress = {}) override {
    engine_.begin(inputs_, ranges_);
    engine_.accumulate(kv, gradient, progress);
    Tensor<float> step = engine_.finish();
    if (kept_.parts)
      for (const View<float>& part : {step.view(), gradient.k, gradient.v}) kept_.round(part.elements());
    const std::span<float> dq = dq_.view().elements();
    std::ranges::transform(dq, step.view().elements(), dq.begin(), std::plus<>());
    if (kept_.dq) kept_.round(dq);
  }
  [[nodiscard]] Tensor<float> finish() override { return std::move(dq_); }

 private:
  CpuBackward<float> engine_;
  BackwardInputs<float> inputs_;
  TokenRanges ranges_;
  Kept kept_;
  Tensor<float> dq_;
};

/// Memory of the travelling dK,dV: a sum is rounded when a rank has added its part.
class RoundedMemory : public HostMemory {
 public:
  explicit RoundedMemory(const Kept& kept) : kept_(kept) {}
  void add(std::span<float> sum, std::span<const float> term) const override {
    HostMemory::add(sum, term);
    kept_.round(sum);
  }

 private:
  Kept kept_;
};

/// The cores of this machine, with those engines and that memory. No bias, no sinks.
class RoundedDevice : public CpuDevice<float> {
 public:
  explicit RoundedDevice(const Kept& kept) : kept_(kept) {}

  [[nodiscard]] std::unique_ptr<Engine<float>> forward(const Scoring& scoring, View<const float> q,
                                                       const TokenRanges& ranges, View<const float>,
                                                       const ExpectedKeys&) const override {
    return std::make_unique<RoundedForward>(scoring, q, ranges, kept_);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<float>> backward(const Scoring& scoring,
                                                                const BackwardInputs<float>& inputs,
                                                                const TokenRanges& ranges,
                                                                const ExpectedKeys&) const override {
    return std::make_unique<RoundedBackward>(scoring, inputs, ranges, kept_);
  }
  [[nodiscard]] GradientAccumulator gradient_accumulator(Index dim, Index terms) const override {
    if (!kept_.dkdv) return CpuDevice<float>::gradient_accumulator(dim, terms);
    return {std::make_shared<RoundedMemory>(kept_), dim};
  }

 private:
  Kept kept_;
};

}  // namespace ring_attention::lesson_08
